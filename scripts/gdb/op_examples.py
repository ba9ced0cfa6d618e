"""A small call of an operator, to be traced: written out for common ones, by a simple rule for the rest."""

from __future__ import annotations

from collections.abc import Callable

import torch

Example = Callable[[], object]


def _optimizer_step(name: str, device: str) -> Example:
    tensors = [[torch.ones(8, device=device) for _ in range(2)] for _ in range(4)]
    steps = [torch.ones((), device=device) for _ in range(2)]
    flags = dict(beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
    step = getattr(torch, name)
    return lambda: step(*tensors, [], steps, lr=1e-3, **flags)


def _gru(device: str) -> Example:
    network = torch.nn.GRU(3, 4).to(device)
    data, hidden = torch.ones(1, 1, 3, device=device), torch.zeros(1, 1, 4, device=device)
    return lambda: network(data, hidden)


def _inference(example: Example) -> Example:
    def call() -> object:
        with torch.no_grad():
            return example()

    return call


def _recurrent(operator: str, device: str) -> Example:
    """What the fused kernels of recurrent layers take: inference."""
    if operator == "_cudnn_rnn":
        network, sequence = torch.nn.GRU(8, 16).to(device).eval(), torch.ones(3, 2, 8, device=device)
        return _inference(lambda: network(sequence))
    data, hidden = torch.ones(2, 8, device=device), torch.zeros(2, 16, device=device)
    if operator == "lstm_cell":
        lstm = torch.nn.LSTMCell(8, 16).to(device)
        return _inference(lambda: lstm(data, (hidden, hidden)))
    cells = {
        "gru_cell": torch.nn.GRUCell(8, 16),
        "rnn_tanh_cell": torch.nn.RNNCell(8, 16),
        "rnn_relu_cell": torch.nn.RNNCell(8, 16, nonlinearity="relu"),
    }
    cell = cells[operator].to(device)
    return _inference(lambda: cell(data, hidden))


def _written_out(operator: str, device: str) -> Example | None:
    def matrix(*sizes: int) -> torch.Tensor:
        return torch.ones(*sizes, device=device, requires_grad=True)

    if operator in ("_fused_adamw_", "_fused_adam_"):
        return _optimizer_step(operator, device)
    if operator == "gru":
        return _gru(device)
    cells = ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
    if operator in cells or (operator == "_cudnn_rnn" and device == "cuda"):
        return _recurrent(operator, device)
    a, b, c = matrix(2, 4), matrix(4, 8), matrix(2, 8)
    weight, bias = matrix(8, 4), matrix(8)
    examples: dict[str, Example] = {
        "cat": lambda: torch.cat([a, a]),
        "stack": lambda: torch.stack([a, a]),
        "mm": lambda: torch.mm(a, b),
        "addmm": lambda: torch.addmm(c, a, b),
        "linear": lambda: torch.nn.functional.linear(a, weight),
        "_addmm_activation": _inference(lambda: torch._addmm_activation(bias, a, b, use_gelu=True)),
        "softmax": lambda: torch.softmax(a, 1),
    }
    return examples.get(operator)


def find(operator: str, device: str) -> Example | None:
    """A call of `operator` that works, or None: then only a script of the user's can show it."""
    written_out = _written_out(operator, device)
    if written_out is not None:
        return written_out
    overloads = getattr(torch.ops.aten, operator)
    square = torch.eye(3, device=device) + 0.5
    for count in (1, 2):  # unary, then binary
        for function in (getattr(torch, operator, None), getattr(torch.Tensor, operator, None), overloads):
            arguments = [square.clone() for _ in range(count)]
            if function is None:
                continue
            try:
                function(*arguments)
            except Exception:  # not an operator of that many tensors
                continue
            return lambda function=function, arguments=arguments: function(*arguments)  # type: ignore[misc]
    return None


def operators_of(example: Example) -> list[str]:
    """The operators that a call goes through, nested ones too: it is run once, under torch's profiler."""
    with torch.autograd.profiler.profile() as profile:
        example()
    names = {event.name for event in profile.function_events}
    return sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::"))
