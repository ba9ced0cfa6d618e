"""scripts/trace_dispatch --cuda: calls into CUDA under the operators, on a GPU and where one is pretended."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from debugging.gdb_here import why_no_calls, why_no_gdb
from paths import SCRIPTS

FAKE = Path(__file__).parent / "fake_cuda.c"


WHY_NO_GDB = why_no_gdb("cuda-gdb", "/usr/local/cuda/bin/cuda-gdb")
needs_gdb = pytest.mark.skipif(bool(WHY_NO_GDB), reason=WHY_NO_GDB or "")
needs_calls = pytest.mark.skipif(bool(why_no_calls()), reason=why_no_calls() or "")


def trace(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
    command = [
        sys.executable,
        str(SCRIPTS / "trace_dispatch"),
        "--python",
        sys.executable,
        "--cuda",
        *arguments,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment | variables, timeout=120, check=False
    )


def calls(*arguments: str, **variables: str) -> list[dict[str, Any]]:
    done = trace("--json", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def cuda_calls_of(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [hop for hop in call["hops"] if hop["kind"] in ("launch", "runtime", "driver")]


# ---- names and notes ---------------------------------------------------------------------------------


@pytest.fixture
def cuda_calls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS / "gdb"))
    import cuda_calls

    return cuda_calls


@pytest.mark.parametrize(
    ("name", "arguments", "note"),
    [
        ("cudaMalloc", (0, 2097152), "allocates 2,097,152 bytes"),
        ("cudaMemcpyAsync", (0, 0, 8, 1 << 32 | 1), "copies 8 bytes, host to device"),
        ("cudaMemcpy", (0, 0, 8, 2), "copies 8 bytes, device to host, waits for the GPU"),
        ("cudaMemsetAsync", (0, 0, 1024), "sets 1,024 bytes"),
        ("cuMemcpyHtoDAsync", (0, 0, 16), "copies 16 bytes"),
        ("cudaStreamSynchronize", (), "waits for the GPU"),
        ("cudaDeviceSynchronize", (), "waits for the GPU"),
        ("cudaStreamIsCapturing", (), "is a graph being captured?"),
        ("cudaGetDevice", (), "current device"),
        ("cudaDeviceGetAttribute", (), "attribute query"),
        ("cudaFuncSetAttribute", (), "sets a limit of a kernel"),
        ("cudaEventRecord", (), "event"),
        ("cuEventQuery", (), "has the GPU come that far?"),
        ("cudaStreamWaitEvent", (), "orders one stream after another"),
        ("cudaSomethingNew", (), ""),
    ],
)
def test_notes(cuda_calls: ModuleType, name: str, arguments: tuple[int, ...], note: str) -> None:
    assert cuda_calls.describe(name, lambda i: arguments[i]) == note


def test_which_functions_of_the_runtime_are_shown(cuda_calls: ModuleType) -> None:
    shown = [
        name
        for name in (
            "cudaMalloc",
            "__cudaLaunchKernel",
            "__cudaPushCallConfiguration",
            "cudaMemcpyAsync_ptsz",
        )
        if cuda_calls.is_runtime(name)
    ]
    assert shown == ["cudaMalloc", "__cudaLaunchKernel"]


def test_kernel_of_a_stub(cuda_calls: ModuleType) -> None:
    """The names that nvcc 13 gives its stubs: of a kernel's own, or made of it."""
    in_anonymous_namespace = "_Z38__device_stub__ZN12_GLOBAL__N_13addEPfPf"
    assert cuda_calls.kernel_of_stub(in_anonymous_namespace) == "_ZN12_GLOBAL__N_13addEPf"
    assert cuda_calls.kernel_of_stub("_ZL25__device_stub__Z3addPfS_iPfS_i") == "_Z3addPfS_i"
    assert cuda_calls.kernel_of_stub("_ZN8aten_ext4cuda3addEPf") == "_ZN8aten_ext4cuda3addEPf"


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        ("add(float*)", "add"),
        (
            "void aten_ext::cuda::_GLOBAL__N__b865d570_13_fused_adam_cu_15dc7c5a::"
            "fused_adam_kernel<float, true, 32764>"
            "(aten_ext::cuda::ListArguments<aten_ext::cuda::Adam<float, true>, 32764>)",
            "aten_ext::cuda::fused_adam_kernel<float, true, 32764>",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
            "at::native::(anonymous namespace)::TensorListMetadata<4>, at::native::F<float, (int)4> >(int)",
            "at::native::multi_tensor_apply_kernel<…>",
        ),
        ("sm90_xmma_gemm_f32f32_tn_n_cublas", "sm90_xmma_gemm_f32f32_tn_n_cublas"),
        ("a<1>::b<2>(void (*)(int))", "a<1>::b<2>"),
        (
            "std::enable_if<true, void>::type internal::gemvx::kernel<int, 4>(x)",
            "internal::gemvx::kernel<int, 4>",
        ),
    ],
)
def test_short_names(cuda_calls: ModuleType, demangled: str, short: str) -> None:
    assert cuda_calls.short_name(demangled) == short


def test_repeated_calls_become_one(cuda_calls: ModuleType) -> None:
    """In the text and in JSON; what CUDA does inside of one of its functions is left out."""
    import call_tree
    import hops

    def run(as_json: bool) -> str:
        out = io.StringIO()
        printer = call_tree.Printer(out, as_json, None)
        tree = call_tree.ThreadTree(printer)
        frame = tree.enter(hops.Hop("call", "cat", "at::_ops::cat::call", ""), 400, 1)
        assert frame is not None
        printer.hop(frame.record, "dispatcher")
        for name, back in (
            ("cudaGetDevice", 2),
            ("cudaGetDevice", 3),
            ("cudaMalloc", 4),
            ("cudaGetDevice", 5),
        ):
            frame = tree.enter(hops.Hop("runtime", name, name, ""), 300, back)
            assert frame is not None
            printer.hop(frame.record, "")
            assert tree.enter(hops.Hop("driver", "cuX", "cuX", ""), 200, 9) is None
            tree.leave(300, back)
        tree.finish()
        return out.getvalue()

    assert [line.split(maxsplit=1) for line in run(False).splitlines()[2:]] == [
        ["cudaGetDevice,", "2 times"],
        ["cudaMalloc"],
        ["cudaGetDevice"],
    ]
    found = [(hop["function"], hop.get("times", 1)) for hop in json.loads(run(True))["hops"]]
    assert found == [
        ("at::_ops::cat::call", 1),
        ("cudaGetDevice", 2),
        ("cudaMalloc", 1),
        ("cudaGetDevice", 1),
    ]


# ---- under gdb, without a GPU ------------------------------------------------------------------------

CALLER = """
import ctypes
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class CallsCuda(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        ctypes.CDLL(None).call_cuda()
        return function(*args, **(kwargs or {}))

with CallsCuda():
    torch.cat([torch.ones(2)])
"""


@pytest.mark.long
@needs_calls  # the driver says what a kernel is called
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch needs the real libraries")
def test_libraries_that_pretend(tmp_path: Path) -> None:
    """Launches named by their stubs, those past the runtime by the driver; bytes and directions of copies."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    built: list[Path] = []
    for part, name in (
        ("DRIVER", "libcuda.so.1"),
        ("RUNTIME", "libcudart.so.13"),
        ("KERNELS", "_kernels.so"),
    ):
        path = tmp_path / name
        command = [compiler, "-O1", "-shared", "-fPIC", f"-D{part}", f"-Wl,-soname,{name}", FAKE, *built]
        subprocess.run([*command, "-o", path], check=True)
        built.append(path)
    script = tmp_path / "script.py"
    script.write_text(CALLER)
    variables = {"LD_PRELOAD": ":".join(map(str, built)), "ATEN_EXT": "0"}
    arguments = ("--ops", "cat", "--script", str(script))
    (call, *_) = calls(*arguments, **variables)
    found = [(hop["function"], hop.get("kernel"), hop.get("times", 1)) for hop in cuda_calls_of(call)]
    assert found == [
        ("cudaGetDevice", None, 3),
        ("cudaMemcpyAsync", None, 1),
        ("__cudaLaunchKernel", "(anonymous namespace)::add(float*)", 1),
        ("cuLaunchKernelEx", "gemm_of_a_library", 1),
        ("cuLaunchKernelEx", "a kernel without a name", 1),
    ]
    text = trace(*arguments, **variables).stdout
    assert "current device, 3 times" in text
    assert "copies 64 bytes, host to device" in text
    assert "launches add\n" in text
    assert "launches gemm_of_a_library (from _kernels.so)" in text


def test_no_cuda_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    if WHY_NO_GDB:
        pytest.skip(WHY_NO_GDB)
    done = trace("cat")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(" finds no CUDA device\n")


# ---- on a GPU ----------------------------------------------------------------------------------------


@needs_gdb
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "override", "upstream"),
    [
        ("cat", "cat_", "at::native::"),
        ("_fused_adamw_", "fused_adam_kernel", "multi_tensor_apply_kernel"),
        ("_cudnn_rnn", "rnn_", "RNN"),
        ("_addmm_activation", "linear_kernel", "cublasLt"),
    ],
)
def test_launches(op: str, override: str, upstream: str) -> None:
    """Each operator's kernels by name, with the overrides on and off; nothing waits for the GPU."""
    names = "cat,mm,addmm,_addmm_activation,_cudnn_rnn,gru_cell,_thnn_fused_gru_cell,_fused_adamw_"
    for kernel, variables in ((override, {"ATEN_EXT_ENABLE": names}), (upstream, {"ATEN_EXT": "0"})):
        (call,) = calls(op, "--ops", op, **variables)
        everything = cuda_calls_of(call)
        launched = [hop["kernel"] for hop in everything if "kernel" in hop]
        assert any(kernel in name for name in launched), launched
        assert any("aten_ext::cuda::" in name for name in launched) == (kernel == override)
        assert "a kernel without a name" not in launched
        assert not [hop for hop in everything if "Synchronize" in hop["function"]]
        assert not [hop for hop in everything if hop["function"] == "cudaMalloc"], (
            "the example has run before"
        )
