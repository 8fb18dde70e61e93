"""The safetensors reader: files of the real library are read, and damaged ones cause only an error message."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_checkpoints import bf16, write_tensors
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.errors import ModelFileError
from eaglelocal.hub.heads import safetensors_files
from eaglelocal.hub.heads.head_folder import MAX_FILES, read_published
from eaglelocal.hub.heads.safetensors_files import MAX_HEADER_BYTES, MAX_TENSORS, read_safetensors

RNG = np.random.default_rng(0)
MATRIX = bf16(RNG.normal(size=(6, 5)))


def raw_file(path: Path, header: object, data: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_what_the_library_wrote_comes_back(dtype: str, tmp_path: Path) -> None:
    write_tensors(tmp_path, {"w": (MATRIX, dtype), "d2t": (np.arange(7), "int64"), "t2d": (MATRIX > 0, "bool")}, 1)
    tensors = read_safetensors(tmp_path / "model.safetensors")
    np.testing.assert_allclose(tensors["w"].floats(), MATRIX, rtol=1e-3 if dtype == "float16" else 0)
    np.testing.assert_array_equal(tensors["w"].rows(2, 4), tensors["w"].floats()[2:4])
    np.testing.assert_array_equal(tensors["d2t"].integers(), np.arange(7))
    np.testing.assert_array_equal(tensors["t2d"].integers(), MATRIX > 0)


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    write_tensors(tmp_path, {f"w{i}": (MATRIX + i, "float32") for i in range(5)}, 3)
    (tmp_path / "config.json").write_text("{}")
    tensors = read_published(tmp_path).tensors
    assert {tensor.path.name for tensor in tensors.values()} == {
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    }
    np.testing.assert_array_equal(tensors["w3"].floats(), MATRIX + 3)


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b'{"w"', "no JSON"),
        (b"", "a header of 0 bytes"),
        (b"[" * 100_000, "its header is nested too deeply"),
        ([], "no JSON object"),
        ({"w": 1}, "no entry"),
        ({"w": ENTRY | {"dtype": "F33"}}, "unknown type F33"),
        ({"w": ENTRY | {"dtype": 3}}, "unknown type 3"),
        ({"w": ENTRY | {"shape": [2, 3]}}, "lies in 16 bytes"),
        ({"w": ENTRY | {"shape": [2, -2]}}, "shape"),
        ({"w": ENTRY | {"shape": [2, True]}}, "shape"),
        ({"w": ENTRY | {"shape": [2**62, 2**62]}}, "lies in 16 bytes"),
        ({"w": ENTRY | {"shape": [], "data_offsets": [0, 0]}}, "lies in 0 bytes"),
        ({"w": ENTRY | {"data_offsets": [16, 0]}}, "offsets"),
        ({"w": ENTRY | {"data_offsets": [0]}}, "offsets"),
        ({"w": ENTRY | {"data_offsets": [8, 24]}}, "cut short"),
        ({"w": ENTRY, "v": ENTRY}, "overlaps"),
        (b'{"w": %b, "w": %b}' % ((json.dumps(ENTRY).encode(),) * 2), "twice"),
    ],
)
def test_a_damaged_header_is_refused_with_its_figure(header: object, says: str, tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x.safetensors", header, bytes(16))
    with pytest.raises(ModelFileError, match=says):
        read_safetensors(path)


@given(at=st.integers(0, 400), value=st.integers(0, 255), cut=st.none() | st.integers(0, 400))
def test_any_byte_may_be_wrong(at: int, value: int, cut: int | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Only ModelFileError may come out, and what is read has the shape that it says."""
    folder = tmp_path_factory.mktemp("fuzzed")
    write_tensors(folder, {"w": (MATRIX, "float32"), "d2t": (np.arange(7), "int64")}, 1)
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] = value
    path.write_bytes(raw[:cut])
    try:
        for tensor in read_safetensors(path).values():
            assert (tensor.floats() if tensor.is_float else tensor.integers()).shape == tensor.shape
    except ModelFileError:
        pass


def test_more_tensors_than_any_head_has_are_refused_by_their_number(tmp_path: Path) -> None:
    entries = {f"w{i}": ENTRY for i in range(MAX_TENSORS + 1)}
    with pytest.raises(ModelFileError, match=rf"{MAX_TENSORS + 1} tensors, more than the limit of {MAX_TENSORS}"):
        read_safetensors(raw_file(tmp_path / "x.safetensors", entries, bytes(16)))


def test_a_header_is_parsed_no_further_than_its_limit(tmp_path: Path) -> None:
    """What follows the last tensor that is allowed is not even looked at: it is no JSON here."""
    entries = json.dumps({f"w{i}": ENTRY for i in range(MAX_TENSORS + 3)}).encode()
    path = raw_file(tmp_path / "x.safetensors", entries[:-1] + b"?" * 1000, bytes(16))
    with pytest.raises(ModelFileError, match=f"more than {MAX_TENSORS} tensors, the limit for a head"):
        read_safetensors(path)


def test_a_header_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(2 * MAX_HEADER_BYTES)
    with pytest.raises(ModelFileError, match=f"a header of {MAX_HEADER_BYTES + 1} bytes"):
        read_safetensors(path)


def test_shards_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path, {f"w{i}": (MATRIX + i, "float32") for i in range(5)}, 3)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(safetensors_files, "MAX_TENSORS", 4)
    with pytest.raises(ModelFileError, match="5 tensors, more than the limit of 4"):
        read_published(tmp_path)


@pytest.mark.parametrize("has_index", [True, False])
def test_more_files_than_any_head_has_are_refused_by_their_number(has_index: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    names = [f"{i}.safetensors" for i in range(MAX_FILES + 1)]
    if has_index:
        (tmp_path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {name: name for name in names}})
        )
    else:
        for name in names:
            (tmp_path / name).touch()
    with pytest.raises(ModelFileError, match=f"{MAX_FILES + 1} files with weights, more than the limit"):
        read_published(tmp_path)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    broken = MATRIX.copy()
    broken[1, 1] = np.nan
    write_tensors(tmp_path, {"w": (broken, "float32")}, 1)
    with pytest.raises(ModelFileError, match="w holds numbers that are not finite"):
        read_safetensors(tmp_path / "model.safetensors")["w"].floats()


def test_eight_bit_floats_are_refused_by_name(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    tensor = read_safetensors(raw_file(tmp_path / "x.safetensors", header, bytes(4)))["w"]
    with pytest.raises(ModelFileError, match="F8_E4M3"):
        tensor.floats()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no config.json"),
        ({"config.json": "{"}, "config.json: no JSON"),
        ({"config.json": "{}"}, "has no \\*.safetensors, pytorch_model.bin or"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "not in torch's present format"),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, "no weight_map"),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"w": "../x.safetensors"}}'},
            "beside it",
        ),
        ({"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"w": "y.safetensors"}}'}, "lacks the"),
    ],
)
def test_a_folder_that_is_no_head(files: dict[str, str], says: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelFileError, match=says):
        read_published(tmp_path)
