"""What identifies a model: all its files if it is split, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.core.own_files import fingerprint
from eaglelocal.gguf.model_info import fingerprint_model

NUM_PARTS = 3


def write_parts(folder: Path, stem: str = "big") -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{stem}-{number:05}-of-{NUM_PARTS:05}.gguf" for number in range(1, NUM_PARTS + 1)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes((number + byte) % 251 for byte in range(9000)))
    return paths


@pytest.mark.parametrize("changed", range(NUM_PARTS))
def test_weights_of_every_part_count_and_so_do_their_sizes(tmp_path: Path, changed: int) -> None:
    paths = write_parts(tmp_path)
    before = fingerprint_model(paths[0])
    content = paths[changed].read_bytes()
    paths[changed].write_bytes(content[:-1] + b"x")
    trained_on = fingerprint_model(paths[0])
    paths[changed].write_bytes(content + b"x")
    longer = fingerprint_model(paths[0])
    assert len({before, trained_on, longer}) == 3
    paths[changed].write_bytes(content)
    assert fingerprint_model(paths[0]) == before


def test_a_copy_under_another_name_is_the_same_model(tmp_path: Path) -> None:
    first, copy = write_parts(tmp_path / "a"), write_parts(tmp_path / "b", stem="other")
    assert fingerprint_model(first[0]) == fingerprint_model(copy[0]) == fingerprint_model(copy[2])


def test_a_single_file_is_identified_by_itself_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    alone, half = tmp_path / "model.gguf", tmp_path / "half-00001-of-00002.gguf"
    for path in (alone, half):
        path.write_bytes(b"weights")
    assert fingerprint_model(alone) == fingerprint(alone) == fingerprint_model(half)
    with pytest.raises(OSError):
        fingerprint_model(tmp_path / "missing-00001-of-00002.gguf")
