"""LoRA adapters: the files of a run (`--lora FILE[:SCALE]`), and the mixes of them that requests choose.

Requests name adapters by id, their number in the order of the flags, as llama-server does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path

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
    file = AdapterFile(expand_path(text)) if scale is None else AdapterFile(expand_path(path), scale)
    if scale is None and path.lower().endswith(".gguf"):
        raise ValueError(f"FILE or FILE:SCALE: {behind!r} is not a number")
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
    """Return the mix of requests that choose no adapters."""
    return tuple((number, file.scale) for number, file in enumerate(files) if file.scale)


def make_mix(scales: Iterable[tuple[int, float]], num_adapters: int) -> AdapterMix:
    """Return the mix of these (id, scale) pairs; adapters that they do not name have scale 0, as in llama-server.

    Raises ValueError, worded for users, on an unknown id, a repeated one, or a scale that is not a number.
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


def parse_scale(text: str) -> tuple[int, float]:
    """Parse `0 0.5`, an adapter's id and its scale. Raises ValueError, which says what the text must be."""
    number, scale = (*text.split(), "", "")[:2]
    value = _read_number(scale)
    if len(text.split()) != 2 or not (number.isascii() and number.isdecimal() and len(number) < 3) or value is None:
        raise ValueError("the id of an adapter and its scale")
    return int(number), value


def apply_mix(files: Sequence[AdapterFile], mix: AdapterMix) -> tuple[AdapterFile, ...]:
    """Return the adapters with the scales that they have in a mix."""
    scales = dict(mix)
    return tuple(replace(file, scale=scales.get(number, 0.0)) for number, file in enumerate(files))


def list_scales(files: Sequence[AdapterFile]) -> AdapterMix:
    """Return the scale of every adapter, including those that are off."""
    return tuple((number, file.scale) for number, file in enumerate(files))


def adapter_objects(files: Sequence[AdapterFile]) -> list[dict[str, object]]:
    """Return the adapters as a server reports them. Of a path only the file's name is shown."""
    return [{"id": number, "name": file.path.name, "scale": file.scale} for number, file in enumerate(files)]


def describe_adapters(files: Sequence[AdapterFile]) -> str:
    """Return the adapters for people, such as `0 poems.gguf, 1 code.gguf x 0.5, 2 notes.gguf off`."""
    return ", ".join(f"{number} {file.path.name}{_describe_scale(file.scale)}" for number, file in enumerate(files))


def _describe_scale(scale: float) -> str:
    return "" if scale == 1.0 else f" x {scale:g}" if scale else " off"
