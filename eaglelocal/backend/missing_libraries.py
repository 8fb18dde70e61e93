"""The shared libraries that a llama.cpp built for graphics cards needs, and where they are if the loader misses them.

An installed CUDA toolkit is often not on the loader's path, and neither are the libraries that NVIDIA publishes as
Python packages. They are loaded before llama.cpp, as torch does; then it finds them. The driver's library comes with
the driver alone.
"""

from __future__ import annotations

import ctypes as C
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

DRIVER = "libcuda.so.1"
MISSING = re.compile(r"\b(lib[\w.+-]{1,80}): cannot open shared object file")
DRIVER_CALL = re.compile(r"undefined symbol: cu[A-Z]\w+")  # of the driver, not of CUDA's libraries
SYSTEM_FOLDERS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/opt/cuda/lib64")
MOST_LOADED = 8


def load_missing(failure: str) -> bool:
    """Load the shared library that is missing by this message of the loader, after what it needs itself.

    Returns False if none is named, or one is not found.
    """
    named = MISSING.search(failure)
    path = find_library_file(named[1]) if named else None
    if path is None:
        return False
    for _ in range(MOST_LOADED):
        try:
            C.CDLL(str(path), mode=C.RTLD_GLOBAL)
        except OSError as error:
            needed = MISSING.search(str(error))
            if needed is None or needed[1] == path.name or not load_missing(str(error)):
                return False
        else:
            return True
    return False


def find_library_file(name: str) -> Path | None:
    """Return the file of a shared library among CUDA's usual folders; None if it is in none of them."""
    return next((folder / name for folder in _iter_folders() if (folder / name).is_file()), None)


def _iter_folders() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield from (Path(root) / "lib64", Path(root) / "lib")
    for pattern in SYSTEM_FOLDERS:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    yield from Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib")


def explain_failure(failure: str) -> str:
    """Return why llama.cpp does not load, for people: what is missing of a card's software, or the message itself."""
    named = MISSING.search(failure)
    if (named and named[1] == DRIVER) or DRIVER_CALL.search(failure):
        return f"it is built for CUDA and needs NVIDIA's driver ({DRIVER}), which is not installed"
    if named and named[1].startswith("libcu"):
        return f"it is built for CUDA and needs {named[1]}; is the folder of CUDA's libraries in LD_LIBRARY_PATH?"
    return failure
