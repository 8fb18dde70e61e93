"""Where `train` keeps what a target said and how far it came: a folder for each target, and one run in it.

Knows files and who uses them; knows nothing of what stands in them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eaglelocal import locations
from eaglelocal.errors import ResourceError
from eaglelocal.training.conversations import unwritable

ANSWERS = "answers.jsonl"
CHECKPOINT, PARTIAL = ".checkpoint", ".partial"
TARGET = "target"  # its label, for people; who works here holds the lock of this file


@dataclass(frozen=True, slots=True)
class Workplace:
    """One on disk."""

    folder: Path
    target: str
    files: tuple[Path, ...]
    size_bytes: int
    is_in_use: bool


@contextmanager
def entered(folder: Path, target: str) -> Iterator[None]:
    """Alone in the folder, which is made. Raises ResourceError where it cannot be written, or another run is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / TARGET).open("a", encoding="utf-8")
    except OSError as error:
        raise unwritable(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
        except OSError:
            hint = "wait for it, or `--work` elsewhere"
            raise ResourceError(f"another `train` works in {folder}", hint=hint) from None
        with suppress(OSError):  # a full disk: what needs the space will say so
            lock.truncate(0)
            lock.write(f"{target}\n")
            lock.flush()
        for left in folder.glob(f"*{PARTIAL}"):  # by a run that was killed
            left.unlink(missing_ok=True)
        yield


def workplaces() -> list[Workplace]:
    """Those in the place where `train` works unless it is told another."""
    found = []
    for folder in sorted(locations.training_dir().glob("*/")):
        with suppress(OSError):  # it went just now
            found.append(_workplace(folder))
    return found


def _workplace(folder: Path) -> Workplace:
    own = (ANSWERS, TARGET)
    files = [path for path in folder.iterdir() if path.name in own or path.suffix in (CHECKPOINT, PARTIAL)]
    label = (folder / TARGET).read_text(encoding="utf-8", errors="replace") if (folder / TARGET) in files else ""
    size_bytes = sum(path.stat().st_size for path in files)
    return Workplace(folder, label.strip(), tuple(sorted(files)), size_bytes, _is_in_use(folder))


def _is_in_use(folder: Path) -> bool:
    try:
        with (folder / TARGET).open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
