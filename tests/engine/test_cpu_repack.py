"""Layouts of quantized weights: never AMX's, the search leaves nothing behind, and the results are the same."""

from __future__ import annotations

import ctypes as C
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.random_models import TargetShape, write_target

from eaglelocal.backend import cpu_repack
from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.cpu_repack import AMX, STACK_BYTES, layout_names
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, NativePlacement, Placement
from eaglelocal.core.batch import Batch, Floats
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.load_notes import is_repacked_less

X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
SHAPE = TargetShape(n_embd=256, n_ff=512, type="Q4_0")
TOKENS = [5, 6, 7, 8, 9, 10, 11]

SEARCH = """
import os, sys
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.cpu_repack import layout_names
import ctypes as C
library = load_library()
print(library.can_repack, *layout_names(C.PyDLL(library.path)))
os.write(2, b"and this is shown")
"""


STACKS = """
import ctypes as C
from eaglelocal.backend.cpu_repack import SignalStack, small_signal_stack
def size():
    found = SignalStack()
    assert C.CDLL(None).sigaltstack(None, C.byref(found)) == 0
    return found.size
print(size())
with small_signal_stack():
    print(size())
print(size())
"""


def test_llama_cpp_finds_no_amx_and_says_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True, check=True)
    can_repack, *names = done.stdout.split()
    assert can_repack == "True"
    assert AMX not in names
    assert done.stderr == "and this is shown"


@pytest.mark.parametrize(
    ("found", "laid_out"), [(("CPU_REPACK",), True), (("AMX", "CPU_REPACK"), False), (("AMX",), False), ((), False)]
)
def test_where_amx_was_found_all_the_same_nothing_is_laid_out(
    found: tuple[str, ...], laid_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_library()
    monkeypatch.setattr(library, "layouts", found)
    assert NativePlacement(library, Placement()).params.use_extra_bufts is laid_out


@pytest.mark.parametrize(
    ("found", "type_name", "result"),
    [(("AMX",), "Q4_0", True), (("AMX",), "Q8_0", False), (("CPU_REPACK",), "Q4_0", False), ((), "Q4_0", False)],
)
def test_weights_that_decode_more_slowly_than_they_need_to_are_reported(
    tmp_path: Path, found: tuple[str, ...], type_name: str, result: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_library()
    monkeypatch.setattr(library, "layouts", found)
    header = read_header(write_target(tmp_path / "target.gguf", replace(SHAPE, type=type_name)))
    assert is_repacked_less(library, header) is result


@pytest.mark.skipif(not X86_LINUX, reason="a stack_t of Linux on x86-64")
def test_the_signal_stack_is_as_it_was_before() -> None:
    """In a process of its own: once a program has AMX, as torch asks for it, the kernel has no stack so small."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", STACKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, within, after = map(int, done.stdout.split())
    assert (within, after) == (STACK_BYTES, before)
    assert before > STACK_BYTES


@pytest.mark.skipif(not X86_LINUX, reason="the search is only guarded there")
def test_without_such_a_stack_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_repack, "STACK_BYTES", 1)  # the kernel has none so small
    native = C.PyDLL(load_library().path)
    assert cpu_repack.find_layouts(native) == layout_names(native)


def logits(path: Path, placement: Placement) -> Floats:
    """[rows, vocab], of all rows at once and then of the same rows one by one."""
    model = LlamaModel(load_library(), path, placement)
    context = LlamaContext(model, ContextParams(n_ctx=256, n_batch=64, kv_type="f32", flash_attn="off"))
    rows = list(range(len(TOKENS)))
    context.decode(Batch(TOKENS, rows, [(0,)] * len(rows), [True] * len(rows)))
    together = [context.logits(row).copy() for row in rows]
    context.remove(0, 0)
    alone = []
    for position, token in enumerate(TOKENS):
        context.decode(Batch([token], [position], [(0,)], [True]))
        alone.append(context.logits(0).copy())
    context.close()
    model.close()
    return np.array([*together, *alone])


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0"])
def test_a_layout_changes_no_numbers(tmp_path: Path, type_name: str) -> None:
    path = write_target(tmp_path / "target.gguf", replace(SHAPE, type=type_name))
    plain = logits(path, Placement(repack=False))
    for placement in (Placement(), Placement(no_mmap=True)):
        np.testing.assert_allclose(logits(path, placement), plain, atol=2e-2 * np.abs(plain).max())
