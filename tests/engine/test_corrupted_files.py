"""Damaged files that our reader accepts must not end the process of llama.cpp: they load, or fail with a reason.

Each of them is loaded and decoded with in a child process, so that an abort, a crash or a hang is seen. The child
works through many files and is started again after one that ended it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from doubles.corruption import WRAPPING, Change, changed_entries, changed_figures, corrupted
from doubles.gguf_bytes import STRING, U32, GgufBytes, TensorBytes
from doubles.hybrid_model import write_hybrid
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.tiers import some_of
from doubles.timeouts import PATIENCE_S

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header

PROGRAM = Path(__file__).parents[1] / "doubles" / "loading_program.py"
SHAPE = TargetShape(n_embd=64, n_layer=4, n_ff=64)
HEAD = HeadShape(width=64, n_ff=64, draft_vocab=100, own_output=True, norm_before_fc=True, norm_output=True)
KINDS = ("llama", "sentencepiece", "qwen2", "lfm2", "eagle3")
PIECE = 1000  # files at once
DECISIVE = ("nextn_predict_layers", "embedding_length_out", "attention.key_length", "attention.value_length")
FEW_COUNTS, FEW_TYPES = (0, 3, 32, WRAPPING, 2**32 - 1), (1, 24, 26)


class Kind:
    """A sound file, the check that stands before llama.cpp, and what the child needs besides."""

    def __init__(self, name: str, folder: Path) -> None:
        self.sound = folder / "sound.gguf"
        self.architecture = "llama" if name == "sentencepiece" else name
        self.arguments: list[str] = []
        self._target: ModelInfo | None = None
        if name == "eagle3":
            target = write_target(folder / "target.gguf", SHAPE)
            self._target, self.arguments = ModelInfo.from_header(read_header(target)), [str(target)]
            write_head(self.sound, HEAD, SHAPE)
        elif name == "lfm2":
            write_hybrid(self.sound)
        elif name == "sentencepiece":
            write_target(self.sound, replace(SHAPE, tokenizer="llama"))
        else:
            write_target(self.sound, replace(SHAPE, arch=name))

    def accepts(self, path: Path) -> bool:
        try:
            header = read_header(path)
            if self._target is None:
                ModelInfo.from_header(header)
            else:
                check_head(EagleInfo.from_header(header), self._target)
        except (ModelFileError, IncompatibleError):
            return False
        return True


@pytest.fixture(params=some_of(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return Kind(request.param, tmp_path)


def accepted(changes: Iterable[Change], kind: Kind) -> dict[Path, str]:
    """The files that pass our own check, with what was changed in them."""
    kept: dict[Path, str] = {}
    for number, (what, content) in enumerate(changes):
        path = kind.sound.with_name(f"{number}.gguf")
        path.write_bytes(content)
        if kind.accepts(path):
            kept[path] = what
        else:
            path.unlink()
    return kept


def outcomes(paths: list[Path], arguments: list[str]) -> list[str]:
    """What became of each file: `used`, `refused: ...`, or how it ended the process."""
    result: list[str] = []
    while len(result) < len(paths):
        result += lines_of_one_child(paths[len(result) :], arguments)
    return result


def lines_of_one_child(paths: list[Path], arguments: list[str]) -> list[str]:
    command, work = [sys.executable, str(PROGRAM), *arguments], "".join(f"{path}\n" for path in paths)
    limit_s = PATIENCE_S + 0.2 * len(paths)
    try:
        done = subprocess.run(command, input=work, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as late:
        return [*(late.stdout or b"").decode().splitlines(), f"hangs for {limit_s:.0f} s"]
    lines = done.stdout.splitlines()
    if len(lines) == len(paths) and done.returncode == 0:
        return lines
    return [*lines, f"ends the process with {done.returncode}: {' '.join(done.stderr.splitlines()[-1:])}"]


def check_that_nothing_ends(changes: Iterable[Change], kind: Kind) -> Counter[str]:
    """How many were used and refused by llama.cpp."""
    kept = accepted(changes, kind)
    result = dict(zip(kept.values(), outcomes(list(kept), kind.arguments), strict=True))
    assert {what: how for what, how in result.items() if not how.startswith(("used", "refused"))} == {}
    return Counter(how.partition(":")[0] for how in result.values())


def noise(sound: Path, count: int, seed: int) -> Iterable[Change]:
    content, header_bytes, rng = sound.read_bytes(), read_header(sound).data_offset, np.random.default_rng(seed)
    return ((f"noise {number}", corrupted(content, header_bytes, rng)) for number in range(count))


def test_the_sound_file_is_used(kind: Kind) -> None:
    assert check_that_nothing_ends([("nothing", kind.sound.read_bytes())], kind) == {"used": 1}


@pytest.mark.parametrize(("count", "least_used"), some_of([(250, 20), (10_000, 500)], rest=pytest.mark.slow))
def test_noise_in_the_header(kind: Kind, count: int, least_used: int) -> None:
    assert check_that_nothing_ends(noise(kind.sound, count, seed=count), kind)["used"] > least_used


@pytest.mark.parametrize(
    ("figures", "least_used"),
    some_of([({"counts": FEW_COUNTS, "type_ids": FEW_TYPES}, 20), ({}, 100)], rest=pytest.mark.slow),
    ids=["few", "all"],
)
def test_a_changed_figure(kind: Kind, figures: dict[str, Any], least_used: int) -> None:
    counted = check_that_nothing_ends(changed_figures(kind.sound, **figures), kind)
    assert counted["used"] > least_used and counted["refused"] > 0


def in_pieces(changes: Iterable[Change], kind: Kind) -> Counter[str]:
    """The same as check_that_nothing_ends for more files than a disk may have room for."""
    counted: Counter[str] = Counter()
    left = iter(changes)
    while piece := list(islice(left, PIECE)):
        counted += check_that_nothing_ends(piece, kind)
        for path in kind.sound.parent.glob("[0-9]*.gguf"):
            path.unlink()
    return counted


def test_a_key_of_another_type_or_length(kind: Kind) -> None:
    """The keys that the file has, and others that decide where numbers lie and how many there are."""
    others = ("general.alignment", *(f"{kind.architecture}.{key}" for key in DECISIVE))
    keys = dict.fromkeys([*read_header(kind.sound).metadata, *others])
    few = (one for number, one in enumerate(changed_entries(kind.sound, kind.architecture, keys)) if number % 3 == 0)
    counted = in_pieces(few, kind)
    assert counted["used"] > 10


@pytest.mark.slow
def test_every_key_that_the_format_knows(kind: Kind) -> None:
    assert in_pieces(changed_entries(kind.sound, kind.architecture), kind)["used"] > 1000


@pytest.mark.parametrize("alignment", some_of([1, 2, 4, 8, 16, 32, 64, 4096], 2))
def test_any_alignment(alignment: int, tmp_path: Path) -> None:
    """Below 32 llama.cpp ends where data that it maps begins anywhere but at a multiple of 32."""
    kind, made = Kind("llama", tmp_path), []
    for number in range(32):
        built = GgufBytes(alignment=alignment).put("general.alignment", U32, alignment)
        made.append((f"name of {number}", rebuilt(kind.sound, built.put("general.name", STRING, "x" * number))))
    counted = check_that_nothing_ends(made, kind)
    assert counted["used"] == (32 if alignment >= 32 else counted["used"]) and counted["used"] > 0


def rebuilt(sound: Path, built: GgufBytes) -> bytes:
    """Its keys and tensors in a file that is laid out otherwise."""
    reader = gguf.GGUFReader(sound)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.name")):
            built.entries.append(b"".join(part.tobytes() for part in field.parts))
    for one in reader.tensors:
        built.tensors.append(
            TensorBytes(one.name, tuple(map(int, one.shape)), one.data.tobytes(), int(one.tensor_type))
        )
    return built.build()


def test_what_ends_the_process_is_seen(tmp_path: Path) -> None:
    """The tokenizer's assertion, past our check, between two sound files."""
    kind = Kind("llama", tmp_path)
    twice = tmp_path / "twice.gguf"
    twice.write_bytes(kind.sound.read_bytes().replace(b"w11", b"w10", 1))
    assert not kind.accepts(twice)
    first, second, third = outcomes([kind.sound, twice, kind.sound], [])
    assert (first, third) == ("used", "used")
    assert second.startswith("ends the process with -6") and "GGML_ASSERT" in second
