"""What is said, and done, where a llama.cpp built for CUDA does not find CUDA's libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eaglelocal.backend import llama_library
from eaglelocal.backend.llama_library import explain_failure, find_library_file

FAILED = "Failed to load shared library '/v/llama_cpp/lib/libllama.so': "
NOT_FOUND = ": cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (f"libcuda.so.1{NOT_FOUND}", "built for CUDA and needs NVIDIA's driver (libcuda.so.1), which is not installed"),
        ("/v/libggml-cuda.so.0: undefined symbol: cuMemCreate", "NVIDIA's driver (libcuda.so.1), which is not"),
        (f"libcublas.so.13{NOT_FOUND}", "needs libcublas.so.13; is the folder of CUDA's libraries in LD_LIBRARY_PATH"),
        (f"libvulkan.so.1{NOT_FOUND}", f"{FAILED}libvulkan.so.1{NOT_FOUND}"),
        ("undefined symbol: curl_easy_init", "undefined symbol: curl_easy_init"),
        ("GLIBC_2.38 not found", "GLIBC_2.38 not found"),
    ],
)
def test_what_is_said(failure: str, said: str) -> None:
    assert said in explain_failure(FAILED + failure)


def build_library(path: Path, *needs: Path, source: str = "int answer(void) { return 42; }") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), f"-Wl,-soname,{path.name}"]
    links = [f"-L{each.parent}" for each in needs] + [f"-l:{each.name}" for each in needs]
    subprocess.run([*command, "-Wl,--no-as-needed", *links], input=source.encode(), check=True)


def test_libraries_off_the_loaders_path_are_loaded_with_what_they_need(tmp_path: Path) -> None:
    """As libcublas needs libcublasLt beside it. In a process of its own: a loaded library stays."""
    folder = tmp_path / "cuda" / "lib64"
    inner, outer, user = folder / "libcuinner.so.13", folder / "libcuouter.so.13", tmp_path / "user.so"
    build_library(inner)
    build_library(outer, inner)
    build_library(user, outer)
    program = (
        "import ctypes, sys\n"
        "from eaglelocal.backend.llama_library import load_missing\n"
        "try: ctypes.CDLL(sys.argv[1])\n"
        "except OSError as error: print(load_missing(str(error)))\n"
        "print(ctypes.CDLL(sys.argv[1]).answer())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(user)],
        env={"CUDA_HOME": str(tmp_path / "cuda"), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["True", "42"], ran.stderr


def test_a_library_that_is_nowhere_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(llama_library, "SYSTEM_FOLDERS", ())
    assert find_library_file("libcublas.so.99") is None
    assert not llama_library.load_missing(f"libcublas.so.99{NOT_FOUND}")
