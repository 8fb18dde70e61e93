"""LoRA adapters: the files of a run (`--lora FILE[:SCALE]`), and the mixes of them that requests choose.

Requests name adapters by id, their number in the order of the flags, as llama-server does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from eaglelocal.core.records import dataclass

MAX_ADAPTERS = 16
MAX_SCALE = 1000.0
AdapterMix = tuple[tuple[int, float], ...]  # (id, scale) in order of ids, without scales of 0
NO_ADAPTERS: AdapterMix = ()


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter of a run, and the scale that it has unless a request sets another."""

    path: Path
    scale: float = 1.0


def parse_adapter(text: str) -> AdapterFile:
    """Parse FILE or FILE:SCALE. What follows the last colon is a scale only if it is a number: see C:\\a.gguf.

    Raises ValueError, which says what the text must be.
    """
    path, colon, behind = text.rpartition(":")
    scale = _read_number(behind) if colon and path else None
    file = AdapterFile(Path(text).expanduser()) if scale is None else AdapterFile(Path(path).expanduser(), scale)
    if not text.strip() or not is_scale(file.scale):
        raise ValueError(f"FILE or FILE:SCALE, with a scale from {-MAX_SCALE:g} to {MAX_SCALE:g}")
    return file


def _read_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def is_scale(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= MAX_SCALE


def usual_mix(files: Sequence[AdapterFile]) -> AdapterMix:
    """Return the mix of requests that choose none."""
    return tuple((number, file.scale) for number, file in enumerate(files) if file.scale)


def make_mix(scales: Iterable[tuple[int, float]], num_adapters: int) -> AdapterMix:
    """Return the mix of these (id, scale) pairs; adapters that they do not name have scale 0, as in llama-server.

    Raises ValueError, for people, on an unknown id, one that comes twice, or a scale that is no number.
    """
    mix: dict[int, float] = {}
    for number, scale in scales:
        if not 0 <= number < num_adapters:
            raise ValueError(f"there is no adapter with id {number}: {describe_ids(num_adapters)}")
        if number in mix:
            raise ValueError(f"the adapter with id {number} comes twice")
        if not is_scale(scale):
            raise ValueError(f"a scale must lie between {-MAX_SCALE:g} and {MAX_SCALE:g}, not {scale:g}")
        mix[number] = float(scale)
    return tuple((number, mix[number]) for number in sorted(mix) if mix[number])


def describe_ids(num_adapters: int) -> str:
    """Return the ids that requests may name."""
    if not num_adapters:
        return "none is loaded (--lora FILE)"
    return "the only id is 0" if num_adapters == 1 else f"the ids are 0 to {num_adapters - 1}"


def describe_mix(mix: AdapterMix, files: Sequence[AdapterFile]) -> str:
    """Return a mix for people, such as `poems.gguf, code.gguf x 0.5`; empty without adapters."""
    return ", ".join(files[number].path.name + ("" if scale == 1.0 else f" x {scale:g}") for number, scale in mix)
