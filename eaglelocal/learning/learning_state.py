"""The state of one head's learning between its processes: the round in progress, and the version on watch.

Every change is one atomic write. A state that cannot be read counts as none: then a new round begins.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.folders import PRIVATE, make_folder
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import append_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError
from eaglelocal.learning.judged_file import SUFFIX as JUDGED
from eaglelocal.learning.learning_round import LearningRound

STATE, LOCK = "learning.json", ".lock"
CHECKPOINT, PARTIAL = ".checkpoint", ".partial"


@dataclass(frozen=True, slots=True)
class VersionWatch:
    """A version that became current, until it has proved itself on live answers.

    before  the version that it replaced
    since   only later answers count, in seconds since 1970
    """

    version: int
    before: int
    since: float


@dataclass(frozen=True, slots=True)
class LearningState:
    """The state of one head.

    learned_until  answers kept up to this time are not new any more
    candidate      number of the version that the round has made
    """

    learned_until: float = 0.0
    round: LearningRound | None = None
    candidate: int | None = None
    watch: VersionWatch | None = None


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process. Raises ResourceError while another process has it."""
    make_folder(folder, PRIVATE)
    with append_own(folder / LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError("another process learns from these answers") from None
        except OSError:  # a file system without locks
            pass
        yield


def read_state(folder: Path) -> LearningState:
    """Return the state of a folder; an empty one if there is none, or it is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        content: Any = read_object(read_own(folder / STATE))
        round_, watch = content["round"], content["watch"]
        return LearningState(
            float(content["learned_until"]),
            round_ and LearningRound(int(round_["start"]), tuple(map(str, round_["keys"])), float(round_["until"])),
            None if content["candidate"] is None else int(content["candidate"]),
            watch and VersionWatch(int(watch["version"]), int(watch["before"]), float(watch["since"])),
        )
    return LearningState()


def write_state(folder: Path, state: LearningState) -> None:
    """Write the state. Raises OSError."""
    write_atomically(folder / STATE, json.dumps(asdict(state)))


def delete_checkpoints(folder: Path) -> None:
    """Delete what a round or a comparison has written on its way."""
    for path in [*folder.glob(f"*{CHECKPOINT}"), *folder.glob(f"*{PARTIAL}"), *folder.glob(f"*{JUDGED}")]:
        with suppress(OSError):
            path.unlink()
