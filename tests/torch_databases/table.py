"""Which entries of PyTorch's test databases exercise which override.

Every override of the registry must have a row here, or a test fails. A row may stand here before its override
does: rows whose override this build does not have are not run.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import aten_ext
from torch_databases.comparison import SUMS
from upstream_versions import OP_DB_HAS_CHOLESKY_AND_QR, SGD_IN_16_BITS_IS_BROKEN


@dataclasses.dataclass(frozen=True)
class Undefined:
    """Samples whose result differs from call to call of upstream's own kernel.

    Attributes:
        pattern: regular expression, searched for in the sample's description.
        reason: what upstream does.
    """

    pattern: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Row:
    """The database entries that reach one operator.

    Attributes:
        operators: names in ``op_db`` and in the databases of foreach operators.
        modules: names in ``module_db``.
        optimizers: names in ``optim_db``.
        more_operators: entries that reach the operator by the way (a backward, a composite): ``--full``.
            None of their calls needs to run fused.
        more_modules: the same in ``module_db``.
        more_optimizers: the same in ``optim_db``.
        cuda_only: those of the entries that reach the operator at CUDA alone.
        exact: the dispatch keys at which the result is documented to be upstream's, bit for bit.
            Elsewhere the tolerances of ``torch.testing.assert_close`` for the dtype hold.
        declined: (dispatch key, entry) -> why every one of its samples goes upstream there. Such an entry
            must reach the override all the same, and one that starts to run fused has to leave this list.
        undefined: (dispatch key, entry) -> samples whose result upstream leaves undefined: not compared.
        sums: entry -> how much rounding adds up in its derivatives, where that is more than elsewhere.
        unreached: dispatch key -> why no sample of any entry gets as far as the override there.
    """

    operators: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    more_operators: tuple[str, ...] = ()
    more_modules: tuple[str, ...] = ()
    more_optimizers: tuple[str, ...] = ()
    cuda_only: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()
    declined: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    undefined: dict[tuple[str, str], Undefined] = dataclasses.field(default_factory=dict)
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    unreached: dict[str, str] = dataclasses.field(default_factory=dict)


# Step counters that live on the GPU (capturable) are counted up by a number; on the CPU by a tensor.
STEPS_BY_SCALAR_ON_CUDA = ("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")

ROWS_OF_ODD_LENGTH = "the samples are a few elements in rows of no multiple of 16 bytes"

# Operator (the part of an override's name before the dot: all its overloads) -> the entries that reach it.
TABLE: dict[str, Row] = {
    # On CUDA upstream's fp32 Adam with L2 decay rounds one element in four differently: docs/overrides.md.
    "_fused_adam_": Row(optimizers=("Adam",), exact=frozenset({"CPU"})),
    "_fused_adamw_": Row(optimizers=("AdamW",), exact=frozenset({"CPU", "CUDA"})),
    "_fused_sgd_": Row(
        optimizers=("SGD",),
        exact=frozenset({"CPU"}),
        undefined={
            ("CPU", "SGD"): Undefined(
                r"torch\.(bfloat16|float16) input .*(momentum|dampening|nesterov).* & fused",
                "with momentum in a 16-bit type, upstream's CPU kernel answers two calls with the same input "
                "differently (seen with torch 2.13, for 16 elements and more)",
            )
        }
        if SGD_IN_16_BITS_IS_BROKEN
        else {},
    ),
    "_fused_adagrad_": Row(
        optimizers=("Adagrad",),
        exact=frozenset({"CPU"}),
        unreached={"CUDA": "torch.optim.Adagrad refuses parameters on the GPU with fused=True"},
    ),
    "_foreach_add_": Row(
        operators=("_foreach_add",),
        optimizers=(*STEPS_BY_SCALAR_ON_CUDA, "Adam", "AdamW", "Adagrad"),
        cuda_only=frozenset(STEPS_BY_SCALAR_ON_CUDA),
        exact=frozenset({"CPU", "CUDA"}),
        declined={
            (key, "_foreach_add"): "the samples are lists of larger tensors, the kernel is for single numbers"
            for key in ("CPU", "CUDA")
        }
        | {
            (
                "CUDA",
                "Adagrad",
            ): "steps are counted on the CPU, what is added to on the GPU are larger tensors"
        },
    ),
    "cat": Row(
        operators=("cat", "stack", "hstack", "vstack", "dstack", "column_stack"),
        # Mostly backward formulas, of split and its kin.
        more_operators=(
            "_chunk_cat",
            "_segment_reduce",
            "chunk",
            "combinations",
            "fft.fftshift",
            "fft.ifftshift",
            "gradient",
            "grid_sampler_2d",
            "grid_sampler_3d",
            "linalg.lu",
            "linalg.lu_factor",
            "linalg.lu_factor_ex",
            "linalg.vander",
            "lu",
            "lu_unpack",
            "masked_scatter",
            "matrix_exp",
            "nn.functional.glu",
            "nn.functional.grid_sample",
            "nn.functional.instance_norm",
            "nn.functional.multi_head_attention_forward",
            "repeat",
            "split",
            "split_with_sizes",
            "split_with_sizes_copy",
            "tile",
            "unbind",
            "unbind_copy",
            "unsafe_chunk",
            "unsafe_split",
        ),
        more_modules=(
            "nn.GLU",
            "nn.GRU",
            "nn.GRUCell",
            "nn.LSTM",
            "nn.LSTMCell",
            "nn.MultiheadAttention",
            "nn.RNN",
            "nn.Transformer",
            "nn.TransformerDecoderLayer",
        ),
        more_optimizers=("Adamax",),
        declined={
            (
                "CPU",
                "vstack",
            ): "along the first dimension the kernel takes 64 inputs or more, the samples have fewer"
        },
        cuda_only=frozenset({"_segment_reduce"}),
        exact=frozenset({"CPU", "CUDA"}),
    ),
    "_cudnn_rnn": Row(modules=("nn.GRU", "nn.LSTM", "nn.RNN")),
    "_cudnn_rnn_backward": Row(
        modules=("nn.GRU", "nn.LSTM", "nn.RNN"),
        # Samples of up to 9 make gates that are almost 0 or 1: their slopes keep few digits of what the
        # forward rounded, and weights of up to 9 multiply that.
        sums={"nn.GRU": 64.0, "nn.LSTM": 64.0, "nn.RNN": 64.0},
    ),
    "_thnn_fused_gru_cell": Row(modules=("nn.GRUCell", "nn.GRU")),
    # An LSTM's is reached by what flows back through cy, on which its first gradients depend.
    "_thnn_fused_gru_cell_backward": Row(
        modules=("nn.GRUCell", "nn.GRU"),
        unreached={
            "CUDA": "gradients of samples are taken with create_graph=True, where upstream composes this "
            "backward of differentiable operators, and cuDNN runs nn.GRU"
        },
    ),
    "_thnn_fused_lstm_cell": Row(modules=("nn.LSTMCell", "nn.LSTM")),
    "_thnn_fused_lstm_cell_backward_impl": Row(modules=("nn.LSTMCell", "nn.LSTM")),
    "gru_cell": Row(modules=("nn.GRUCell",)),
    "lstm_cell": Row(modules=("nn.LSTMCell",)),
    "rnn_tanh_cell": Row(modules=("nn.RNNCell",)),
    "rnn_relu_cell": Row(modules=("nn.RNNCell",)),
    "gru": Row(modules=("nn.GRU",)),
    "lstm": Row(modules=("nn.LSTM",)),
    "rnn_tanh": Row(modules=("nn.RNN",)),
    "rnn_relu": Row(modules=("nn.RNN",)),
    "addmm": Row(
        operators=("addmm", "nn.functional.linear"),
        modules=("nn.Linear", "nn.TransformerEncoder", "nn.TransformerEncoderLayer"),
        more_operators=("nn.functional.multi_head_attention_forward",),
        more_modules=("nn.MultiheadAttention", "nn.RNNCell", "nn.Transformer", "nn.TransformerDecoderLayer"),
        declined={
            ("CUDA", "addmm"): f"{ROWS_OF_ODD_LENGTH}, and none of the biases is a vector of their length"
        },
        # Softmax and norms of several layers amplify rounding. Against float64 (H200, 2.11) upstream is off
        # by up to 1.1e-5 of the largest element; ours by no more, but for one sample in 74 (5.6e-5).
        sums={"nn.TransformerEncoder": 64.0},
    ),
    "_addmm_activation": Row(
        modules=("nn.TransformerEncoder", "nn.TransformerEncoderLayer"),
        unreached={"CUDA": "no sample takes the fast path of nn.TransformerEncoderLayer, which calls it"},
    ),
    "mm": Row(
        operators=("mm", "nn.functional.linear"),
        modules=("nn.Linear",),
        # Mostly backward formulas.
        more_operators=(
            "addmm",
            *(("cholesky", "qr") if OP_DB_HAS_CHOLESKY_AND_QR else ()),
            "cholesky_inverse",
            "cholesky_solve",
            "corrcoef",
            "cov",
            "linalg.cholesky",
            "linalg.cholesky_ex",
            "linalg.cond",
            "linalg.eig",
            "linalg.eigh",
            "linalg.eigvals",
            "linalg.eigvalsh",
            "linalg.householder_product",
            "linalg.inv",
            "linalg.inv_ex",
            "linalg.lstsq",
            "linalg.lu",
            "linalg.lu_factor",
            "linalg.lu_factor_ex",
            "linalg.lu_solve",
            "linalg.multi_dot",
            "linalg.pinv",
            "linalg.qr",
            "linalg.slogdet",
            "linalg.solve",
            "linalg.solve_ex",
            "linalg.solve_triangular",
            "linalg.svd",
            "linalg.svdvals",
            "linalg.tensorinv",
            "linalg.tensorsolve",
            "logdet",
            "lu",
            "lu_solve",
            "nn.functional.multi_head_attention_forward",
            "norm",
            "ormqr",
            "pca_lowrank",
            "pinverse",
            "sparse.sampled_addmm",
            "svd",
            "svd_lowrank",
            "tensordot",
            "triangular_solve",
        ),
        more_modules=(
            "nn.GRUCell",
            "nn.LSTMCell",
            "nn.MultiheadAttention",
            "nn.RNNCell",
            "nn.Transformer",
            "nn.TransformerDecoderLayer",
            "nn.TransformerEncoder",
            "nn.TransformerEncoderLayer",
        ),
        more_optimizers=("Adafactor",),
        declined={("CUDA", "mm"): ROWS_OF_ODD_LENGTH},
    ),
    "linear": Row(
        operators=("nn.functional.linear",),
        modules=("nn.Linear", "nn.TransformerEncoder", "nn.TransformerEncoderLayer"),
    ),
}

# Overloads that no entry reaches at any key, and why.
UNREACHED = {
    f"{name}.data": "no sample is a packed sequence" for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")
}

# Composite operator -> the calls of overridden operators that one call of its decomposition makes, on CUDA.
# Its own kernel takes their place.
PARTS = {
    "gru_cell": {"mm": 2, "_thnn_fused_gru_cell": 1},
    "lstm_cell": {"mm": 2, "_thnn_fused_lstm_cell": 1},
    "rnn_tanh_cell": {"addmm": 2},
    "rnn_relu_cell": {"addmm": 2},
}

# Composite operator -> overridden operators that its decomposition calls as often as a sequence has steps.
MANY_PARTS = {name: ("cat",) for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")}


def decomposed(asked: Mapping[str, int], ran: Mapping[str, int]) -> dict[str, int]:
    """How often each override would have been asked if composite operators had no kernel.

    Args:
        asked: override -> its calls, fused or declined, of all that there are at the key.
        ran: override -> those that ran fused.

    Returns:
        Override -> calls, of those that were asked at all.
    """
    found = collections.Counter({name: count for name, count in asked.items() if count})
    for composite, parts in PARTS.items():
        for part, count in parts.items():
            if ran.get(composite, 0) and part in asked:
                found[part] += count * ran[composite]
    return dict(found)


def comparable(calls: Mapping[str, Any], ran: Mapping[str, int]) -> dict[str, Any]:
    """The calls without those of operators that a composite operator's own kernel has made unpredictable.

    Args:
        calls: override -> its calls, with overrides on or off.
        ran: override -> those that ran fused.
    """
    unknown = {part for name, count in ran.items() if count for part in MANY_PARTS.get(operator(name), ())}
    return {name: count for name, count in calls.items() if name not in unknown}


def operator(override: str) -> str:
    """The row of an override: ``cat`` for ``cat.out``."""
    return override.partition(".")[0]


def overrides_at(key: str) -> list[str]:
    """The overrides that this build has at a dispatch key."""
    return [override.name for override in aten_ext.overrides() if key in override.keys]


@dataclasses.dataclass(frozen=True, order=True)
class Entry:
    """One entry of one database: ``Entry("op_db", "cat")``."""

    database: str
    name: str

    def __str__(self) -> str:
        """As the tables and test names have it."""
        return f"{self.database}: {self.name}"


def entries_of(override: str, *, full: bool) -> list[Entry]:
    """The entries that reach an override.

    Raises:
        KeyError: the override has no row.
    """
    row = TABLE[operator(override)]
    names = {
        "op_db": row.operators + (row.more_operators if full else ()),
        "module_db": row.modules + (row.more_modules if full else ()),
        "optim_db": row.optimizers + (row.more_optimizers if full else ()),
    }
    return [Entry(database, name) for database, group in names.items() for name in group]


def entries_at(key: str, *, full: bool) -> dict[Entry, list[str]]:
    """Every entry that reaches an override of this build at ``key``, and which overrides those are."""
    result: dict[Entry, list[str]] = {}
    for override in overrides_at(key):
        if operator(override) in TABLE:
            row = TABLE[operator(override)]
            for entry in entries_of(override, full=full):
                if key != "CUDA" and entry.name in row.cuda_only:
                    continue
                result.setdefault(entry, []).append(override)
    return dict(sorted(result.items()))


def _rows(entry: Entry, key: str) -> list[Row]:
    return [TABLE[operator(override)] for override in entries_at(key, full=True).get(entry, [])]


def is_exact(entry: Entry, key: str) -> bool:
    """Whether every override that the entry reaches at ``key`` gives upstream's bits."""
    return all(key in row.exact for row in _rows(entry, key))


def why_declined(entry: Entry, key: str) -> str | None:
    """Why no sample of the entry runs fused at ``key``, where the table says so."""
    reasons = [row.declined.get((key, entry.name)) for row in _rows(entry, key)]
    return next(filter(None, reasons), None)


def sums_of(entry: Entry, key: str) -> float:
    """How much rounding adds up in the entry's derivatives."""
    return max((row.sums.get(entry.name, SUMS) for row in _rows(entry, key)), default=SUMS)


def why_unreached(override: str, key: str) -> str | None:
    """Why no entry gets as far as the override at ``key``, where the table says so."""
    if override in UNREACHED:
        return UNREACHED[override]
    return TABLE[operator(override)].unreached.get(key)


def undefined_samples(entry: Entry, key: str) -> Undefined | None:
    """The samples of the entry that upstream leaves undefined at ``key``, where the table says so."""
    found = [row.undefined.get((key, entry.name)) for row in _rows(entry, key)]
    return next(filter(None, found), None)
