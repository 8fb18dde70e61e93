"""The folders where `train` keeps a target's answers and its own state: one for each target, for one run at a time.

It handles files and locks; their contents are read elsewhere.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.atomic_file import PRIVATE, make_folder
from eaglelocal.core.own_files import append_own, open_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.training.conversations import make_write_error, suggest_folder

ANSWERS, QUESTIONS = "answers.jsonl", "questions.jsonl"
MOMENT = "moment.gguf"  # the head so far
WEAK = "weak.gguf"  # the head of a run that learned too little, from which another can go on
CHECKPOINT, CURVE, PARTIAL, STATES = ".checkpoint", ".curve", ".partial", ".states"
TARGET = "target"  # holds the target's name and fingerprint; the run that uses the folder locks this file
FILES, SUFFIXES = (ANSWERS, QUESTIONS, MOMENT, WEAK, TARGET), (CHECKPOINT, CURVE, PARTIAL, STATES)


@dataclass(frozen=True, slots=True)
class TrainingFolder:
    """A folder of `train` on disk. `paths`: its files, and last the folder itself if it holds nothing else."""

    folder: Path
    target: str
    paths: tuple[Path, ...]
    size_bytes: int
    is_in_use: bool


@contextmanager
def enter_folder(folder: Path, target: str, fingerprint: str) -> Iterator[None]:
    """Create the folder and lock it for this run alone.

    target       the target's name, for people
    fingerprint  of its file, by which it is the same one under another name

    Raises ResourceError where it cannot be written, or another run uses it; UsageError where its answers are another
    target's.
    """
    try:
        make_folder(folder, PRIVATE)
        lock = append_own(folder / TARGET)
    except OSError as error:
        raise make_write_error(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
        except BlockingIOError:
            hint = f"wait for it, or `--work {suggest_folder()}`"
            raise ResourceError(f"another `eaglelocal train` is using {folder}", hint=hint) from None
        _claim(folder, lock, target, fingerprint)
        for left in folder.glob(f"*{PARTIAL}"):  # a killed run left it
            left.unlink(missing_ok=True)
        yield


def _claim(folder: Path, lock: BufferedWriter, target: str, fingerprint: str) -> None:
    before = _read_claim(folder)
    if before and fingerprint not in before[1:]:
        hint = f"rm -r {quote_path(folder)}, or `--work {suggest_folder()}`"
        raise UsageError(f"{folder} holds the answers of another target: {before[0]}", hint=hint)
    if not before:
        with suppress(OSError):  # a full disk: later writes will report it
            lock.write(f"{target}\n{fingerprint}\n".encode(errors="replace"))
            lock.flush()


def _read_claim(folder: Path) -> list[str]:
    return read_own(folder / TARGET).decode(errors="replace").splitlines()


def list_folders() -> list[TrainingFolder]:
    """Return the folders in the place where `train` works by default."""
    found = []
    for folder in sorted(locations.training_dir().glob("*/")):
        with suppress(OSError):  # removed meanwhile
            found.append(_read_folder(folder))
    return found


def _read_folder(folder: Path) -> TrainingFolder:
    all_paths = list(folder.iterdir())
    own = sorted(path for path in all_paths if path.name in FILES or path.suffix in SUFFIXES)
    claim = _read_claim(folder) if folder / TARGET in own else []
    size_bytes = 0
    for path in own:
        with suppress(FileNotFoundError):  # a run that is going on has renamed it
            size_bytes += path.stat().st_size
    paths = (*own, *([folder] if len(own) == len(all_paths) else []))
    return TrainingFolder(folder, next(iter(claim), ""), paths, size_bytes, _is_in_use(folder))


def _is_in_use(folder: Path) -> bool:
    try:
        with open_own(folder / TARGET) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
