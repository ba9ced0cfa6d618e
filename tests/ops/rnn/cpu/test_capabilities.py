"""Recurrent layers on the CPU with each instruction set, which the environment of a process decides."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from paths import ROOT

from .cases import documented

PROGRAM = """
import torch
import aten_ext
from ops.rnn.cpu.cases import CELLS, Case, assert_close, assert_ran, with_gradients

print(torch.backends.cpu.get_cpu_capability())
for cell in CELLS:
    for case in (
        Case(cell, 6, 7, 9, 45, layers=2, bidirectional=True),
        Case(cell, 9, 20, 5, 70, lengths=(9,) * 7 + (4,) * 12 + (1,)),
        Case(cell, 2, 3, 5, 70),
    ):
        aten_ext.reset_counts()
        ours = with_gradients(case)
        counts = aten_ext.counts("CPU")[case.name]
        print(counts.ran, *counts.declined)
        with aten_ext.disabled():
            assert_close(ours, with_gradients(case), with_gradients(case, torch.double))
"""


@pytest.mark.parametrize(
    ("wanted", "answer"), [("avx2", "1"), ("avx512", "1"), ("default", f"0 {documented('CPU without AVX2')}")]
)
def test_capability(wanted: str, answer: str) -> None:
    has = {"avx2": torch.cpu._is_avx2_supported, "avx512": torch.cpu._is_avx512_supported}
    if wanted in has and not has[wanted]():
        pytest.skip(f"a machine without {wanted}: PyTorch would run into an instruction that it has not")
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "ATEN_CPU_CAPABILITY": wanted, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    capability, *lines = done.stdout.splitlines()
    if capability.lower() != wanted:
        pytest.skip(f"this machine has {capability}")
    assert lines == [answer] * 12
