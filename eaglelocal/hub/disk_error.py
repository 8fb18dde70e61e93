"""The message for bytes that could not be written."""

from __future__ import annotations

import errno


def disk_trouble(problem: OSError, path: str) -> str:
    """Describe a failed write: the file, and the reason as the system gives it."""
    if problem.errno == errno.ENOSPC:
        return f"the disk of {path} is full"
    return f"cannot write {path}: {problem.strerror or problem}"
