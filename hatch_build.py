"""Compiles the C part (eaglelocal/backend/native/*.c) into the package, for wheels and editable installs alike.

Plain C, no headers but its own and the system's: the compiler that llama.cpp needs anyway is enough.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

FOLDER = Path("eaglelocal/backend/native")
LIBRARY = "libnative_step.dylib" if sys.platform == "darwin" else "libnative_step.so"
FLAGS = ("-std=gnu11", "-O3", "-Wall", "-fPIC", "-shared", "-pthread")
HINT = "install a C compiler (Debian: apt install gcc; macOS: xcode-select --install), or name yours in CC"


class CompileHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        self._compile(sorted(folder.glob("*.c")), folder / LIBRARY)
        build_data["artifacts"].append(f"/{FOLDER.as_posix()}/{LIBRARY}")  # git ignores it, the wheel must not
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform()}"  # any Python 3: the library knows nothing of Python's API

    def _compile(self, sources: list[Path], library: Path) -> None:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        fresh = library.with_name(f"{library.name}.{os.getpid()}")  # a process may have the old one mapped
        command = [*compiler, *FLAGS, "-o", str(fresh), *map(str, sources), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            self.app.abort(f"eaglelocal's C part needs a compiler, and {compiler[0]} cannot be run: {error}\n{HINT}")
        if done.returncode:
            self.app.abort(f"eaglelocal's C part does not compile: {shlex.join(command)}\n{done.stderr}\n{HINT}")
        fresh.replace(library)


def platform() -> str:
    """The platform of this machine, not of the widest Linux that a wheel might also serve."""
    return next(tag.platform for tag in sys_tags() if not tag.platform.startswith(("manylinux", "musllinux")))
