"""Tensors on devices of their own: `--override-tensor PATTERN=DEVICE`, as llama.cpp's `-ot`.

The first pattern that occurs in a tensor's name decides its device. llama.cpp reads patterns as ECMAScript does
(std::regex), which knows less than Python.
"""

from __future__ import annotations

import re
import warnings

from eaglelocal.core.records import dataclass

PROCESSOR = "CPU"  # as llama.cpp names it
EXAMPLE = r"\.ffn_.*_exps=CPU"
# what std::regex reads otherwise: classes of POSIX or empty ones, and braces that are no {n}, {n,} or {n,m}
UNLIKE = re.compile(r"\\.|(\[\^?\])|\[(?:\\.|[^\]\\[]|(\[[:.=])|\[(?![:.=]))*\]?|(\{(?!\d+(?:,\d*)?\}))")
PYTHON_ONLY = re.compile(r"\(\?(?![:=!])|\\[AZ]|[*+?}]\+")  # what std::regex does not know


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """A pattern of names of tensors, and the device that holds them, as llama.cpp names it."""

    pattern: str
    device: str

    def __str__(self) -> str:
        return f"{self.pattern}={self.device}"

    def matches(self, name: str) -> bool:
        return re.search(self.pattern, name) is not None


def parse_overrides(text: str) -> tuple[TensorOverride, ...]:
    """Parse `PATTERN=DEVICE,PATTERN=DEVICE`. Raises ValueError; its text says what the setting must be.

    A comma inside a pattern is one of its own: only one after a device separates two.

    >>> [str(each) for each in parse_overrides(r"blk\\.\\d{1,2}\\.ffn_.*_exps=CPU,output=CUDA0")]
    ['blk\\\\.\\\\d{1,2}\\\\.ffn_.*_exps=CPU', 'output=CUDA0']
    """
    found, begun = [], ""
    for part in text.split(","):
        begun = f"{begun},{part}" if begun else part
        if "=" in part:
            pattern, _, device = begun.rpartition("=")
            found.append(TensorOverride(pattern.strip(), device.strip()))
            begun = ""
    if begun.strip() or not found:
        raise ValueError(f"PATTERN=DEVICE, as {EXAMPLE}; {begun.strip()!r} names no device")
    for each in found:
        check_pattern(each)
    return tuple(found)


def check_pattern(override: TensorOverride) -> None:
    """Raise ValueError for a pattern that llama.cpp cannot read, or a missing part."""
    if not override.pattern or not override.device:
        raise ValueError(f"PATTERN=DEVICE, and both are needed in {str(override)!r}")
    pattern = override.pattern
    for found in UNLIKE.finditer(pattern):
        if found.lastindex:
            raise ValueError(f"PATTERN=DEVICE, and llama.cpp cannot read {found[found.lastindex]!r} in {pattern!r}")
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):  # a class that may change its meaning
            re.compile(pattern)
    except (re.error, FutureWarning) as error:
        raise ValueError(f"PATTERN=DEVICE, and {pattern!r} is no regular expression: {error}") from None
    except (RecursionError, OverflowError):
        raise ValueError("PATTERN=DEVICE, and the pattern is nested too deep or repeats too often") from None
    if unknown := PYTHON_ONLY.search(pattern):
        raise ValueError(f"PATTERN=DEVICE, and llama.cpp does not know {unknown.group()!r} of {pattern!r}")
