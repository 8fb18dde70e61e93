"""The whole probe on this machine, and what it says of llama.cpp without loading it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglelocal.probe.cpuinfo import MemoryLimit
from eaglelocal.probe.machine import Cpu, LlamaCpp, Machine, MainMemory, to_json
from eaglelocal.probe.probe import find_backends, find_library_folder, free_bytes, limit_memory, parse_marked, probe


@pytest.mark.parametrize(
    ("names", "backends"),
    [
        (["libggml.so", "libggml-base.so", "libggml-cpu.so", "libllama.so"], ("cpu",)),
        (["libggml-base.so.0.25.3", "libggml-cpu.so.0", "libggml-cuda.so.0.25.3"], ("cpu", "cuda")),
        (["libggml-cpu-haswell.so", "libggml-cpu-skylakex.so", "libggml-vulkan.so"], ("cpu", "vulkan")),
        (["libggml-metal.dylib", "libggml-blas.dylib", "libggml-cpu.0.9.4.dylib"], ("blas", "cpu", "metal")),
        (["ggml-base.dll", "ggml-cpu-alderlake.dll", "ggml-cuda.dll", "ggml.dll"], ("cpu", "cuda")),
        (["ggml-cpu.h", "libggml-cpu.so.bak", "libmtmd.so"], ()),
        ([], ()),
    ],
)
def test_backends_by_the_names_of_their_libraries(names: list[str], backends: tuple[str, ...]) -> None:
    assert find_backends(names) == backends


def test_the_bindings_own_variable_moves_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert find_library_folder() == tmp_path
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / "missing"))
    assert find_library_folder() is None


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, MainMemory(total_bytes=1000, available_bytes=600, installed_bytes=1000)),
        (
            MemoryLimit(500, 100),
            MainMemory(total_bytes=500, available_bytes=400, limit_bytes=500, installed_bytes=1000),
        ),
        (MemoryLimit(900, 0), MainMemory(total_bytes=900, available_bytes=600, limit_bytes=900, installed_bytes=1000)),
        (
            MemoryLimit(5000, 0),
            MainMemory(total_bytes=1000, available_bytes=600, limit_bytes=5000, installed_bytes=1000),
        ),
    ],
)
def test_memory_is_what_the_cgroup_leaves(limit: MemoryLimit | None, expected: MainMemory) -> None:
    assert limit_memory(total_bytes=1000, available_bytes=600, limit=limit) == expected


@pytest.mark.parametrize(
    ("text", "value"), [("always [madvise] never\n", "madvise"), ("[never]", "never"), ("", None), ("always", None)]
)
def test_what_the_kernel_marks(text: str, value: str | None) -> None:
    assert parse_marked(text) == value


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


def test_this_machine() -> None:
    machine = probe()
    assert machine.memory.total_bytes is not None
    assert machine.memory.available_bytes is not None
    assert machine.memory.total_bytes >= machine.memory.available_bytes > 0
    assert 1 <= machine.cpu.usable_threads <= (os.cpu_count() or 1)
    assert machine.llama_cpp.version
    assert "cpu" in machine.llama_cpp.backends


def test_json_has_the_agreed_keys_and_survives_the_unknown() -> None:
    nothing = Machine(
        gpus=(), unified=None, cpu=Cpu(), memory=MainMemory(), cache_free_bytes=None, llama_cpp=LlamaCpp()
    )  # fmt: skip
    for machine in (nothing, probe()):
        shown = json.loads(json.dumps(to_json(machine)))
        assert {"gpus", "cpu", "memory", "llama_cpp"} <= set(shown)
        assert {"version", "backends"} <= set(shown["llama_cpp"])
        assert isinstance(shown["gpus"], list)
    assert to_json(nothing)["llama_cpp"] == {
        "version": None,
        "backends": [],
        "folder": None,
        "ggml_version": None,
    }


def test_probing_loads_nothing_heavy() -> None:
    program = (
        "import sys; from eaglelocal.probe.probe import probe; probe(); "
        "print({'llama_cpp', 'torch', 'textual', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
