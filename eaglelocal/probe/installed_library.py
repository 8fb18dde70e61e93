"""The installed llama-cpp-python: its version and the ggml backends it was built with.

Imports nothing: loading the library takes time and memory, and a broken one can crash the process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from eaglelocal.core.package_file import find_package_file, read_package_version
from eaglelocal.probe.machine import LlamaCpp

PACKAGE = "llama_cpp"
_BACKEND_FILE = re.compile(r"(?:lib)?ggml-([a-z0-9]+)(?:-[\w-]+)?(?:\.\d+)*\.(?:so|dylib|dll)(?:\.\d+)*")
_BASE_FILE = re.compile(r"libggml-base\.(?:so\.(\d+(?:\.\d+)+)|(\d+(?:\.\d+)+)\.dylib)")


def read_llama_cpp() -> LlamaCpp:
    folder = find_library_folder()
    names = [path.name for path in folder.iterdir()] if folder else []
    return LlamaCpp(
        version=read_package_version(PACKAGE),
        backends=find_backends(names),
        folder=folder,
        ggml_version=find_ggml_version(names),
    )


def find_backends(names: Iterable[str]) -> tuple[str, ...]:
    """Return the backends among file names: cpu and cuda for libggml-cpu-haswell.so, ggml-cuda.dll, libggml-base.so."""
    matches = (_BACKEND_FILE.fullmatch(name) for name in names)
    return tuple(sorted({match[1] for match in matches if match} - {"base"}))


def find_ggml_version(names: Iterable[str]) -> str | None:
    """Return 0.25.3 for libggml-base.so.0.25.3 or libggml-base.0.25.3.dylib; the longest of several."""
    matches = (_BASE_FILE.fullmatch(name) for name in names)
    return max((match[1] or match[2] for match in matches if match), key=lambda v: (len(v), v), default=None)


def find_library_folder() -> Path | None:
    """Return the folder in which the binding looks for its libraries; None if it is not installed."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")  # the binding's own variable
    if override:
        return _existing(Path(override))
    package = find_package_file(PACKAGE)
    return _existing(package.parent / "lib") if package else None


def _existing(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None
