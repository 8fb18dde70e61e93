"""The bounded reader: sound files read as the `gguf` package reads them, broken ones are refused."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from doubles.corruption import corrupted
from doubles.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    TYPE_Q4_0,
    U8,
    U16,
    U32,
    GgufBytes,
    TensorBytes,
    bf16,
    small_model,
)

from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.ggml_types import GGML_TYPES
from eaglelocal.gguf.header import ArrayValue
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor


def written(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_reads_what_the_gguf_package_reads(tmp_path: Path, version: int) -> None:
    built = small_model()
    built.version = version
    path = written(tmp_path, built.build())
    header, theirs = read_header(path), gguf.GGUFReader(path)
    assert header.version == version
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    ours = {key: list(header.array(key) or ()) or header.metadata[key] for key in header.metadata}
    assert ours == expected
    assert list(header.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = header.tensors[tensor.name]
        assert list(info.shape) == list(tensor.shape)
        assert (info.type.id, info.nbytes) == (tensor.tensor_type, tensor.n_bytes)
        assert header.data_offset + info.offset == tensor.data_offset


def test_tensors_come_back_as_floats(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    wide, half = rng.normal(size=(6, 64)).astype(np.float32), rng.normal(size=(4, 32)).astype(np.float16)
    built = GgufBytes().tensor("wide", wide).tensor("brain", bf16(wide))
    built.tensors.append(TensorBytes("half", (32, 4), half.tobytes(), 1))
    blocks = gguf.quants.quantize(wide, gguf.GGMLQuantizationType.Q4_0)
    built.tensors.append(TensorBytes("blocks", (64, 6), blocks.tobytes(), TYPE_Q4_0))
    path = written(tmp_path, built.build())
    header = read_header(path)
    assert np.array_equal(read_tensor(header, "wide"), wide)
    assert np.array_equal(read_tensor(header, "half"), half.astype(np.float32))
    assert np.allclose(read_tensor(header, "brain"), wide, rtol=2**-8)
    decoded = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(read_tensor(header, "blocks"), decoded)
    with pytest.raises(ModelFileError, match="no tensor missing"):
        read_tensor(header, "missing")
    with pytest.raises(ModelFileError, match="not integers"):
        read_indices(header, "wide")


@pytest.mark.parametrize("name", ["Q2_0", "Q8_1", "I64"])
def test_a_type_that_nothing_decodes_is_named(tmp_path: Path, name: str) -> None:
    """Unknown to the package, known to it by name only, and no numbers of a matrix at all."""
    kind = next(kind for kind in GGML_TYPES.values() if kind.name == name)
    built = small_model()
    built.tensors.append(TensorBytes("odd", (kind.block_elements,), bytes(kind.block_bytes), kind.id))
    path = written(tmp_path, built.build())
    with pytest.raises(ModelFileError, match=f"tensor odd: cannot decode {name}"):
        read_tensor(read_header(path), "odd")


def test_types_agree_with_the_gguf_package() -> None:
    """Except Q8_1, where the package has 40 bytes and ggml-common.h has two halves and 32 bytes."""
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.value in GGML_TYPES and kind.name != "Q8_1":
            ours = GGML_TYPES[kind.value]
            assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, block, size)


def test_keys_limit_what_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, small_model().build())
    header = read_header(path, keys={"general.name", "tokenizer.ggml.tokens"})
    assert set(header.metadata) == {"general.name", "tokenizer.ggml.tokens"}
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, ArrayValue) and tokens.count == 5
    assert header.array("general.name") is None


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignment_of_the_file_is_honoured(tmp_path: Path, alignment: int) -> None:
    built = small_model()
    built.alignment = alignment
    built.put("general.alignment", U32, alignment)
    path = written(tmp_path, built.build())
    header = read_header(path)
    assert header.data_offset % alignment == 0
    assert read_indices(header, "d2t").tolist() == [0, 1, 2, 3, 4]


def test_strings_longer_than_the_window_are_stepped_over(tmp_path: Path) -> None:
    long = "x" * (5 << 20)
    built = GgufBytes().array("a", STRING, ["q", long, "r", long, ""] * 2).put("b", STRING, "after")
    path = written(tmp_path, built.build())
    header = read_header(path)
    assert header.metadata["b"] == "after"
    values = header.array("a")
    assert values is not None and [len(str(value)) for value in values] == [1, len(long), 1, len(long), 0] * 2


def _entry(kind: int, value: bytes) -> Callable[[GgufBytes], object]:
    return lambda built: built.raw("bad.key", kind, value)


def _tensor(**changes: object) -> Callable[[GgufBytes], object]:
    base: dict[str, object] = {"name": "bad", "shape": (32,), "data": bytes(128)}
    return lambda built: built.tensors.append(TensorBytes(**(base | changes)))  # type: ignore[arg-type]


def _set(**changes: object) -> Callable[[GgufBytes], object]:
    return lambda built: [setattr(built, name, value) for name, value in changes.items()]


def _later_offset(offset: int) -> Callable[[GgufBytes], object]:
    return lambda built: setattr(built.tensors[1], "offset", offset)


HUGE = 2**63
MALFORMED = {
    "magic": (_set(magic=b"GGML"), "not a GGUF file"),
    "version 1": (_set(version=1), "version 1"),
    "version 4": (_set(version=4), "version 4"),
    "version 0": (_set(version=0), "version 0"),
    "big endian": (_set(version=0x03000000), "big-endian"),
    "many keys": (_set(num_entries=HUGE), "keys, more than the limit"),
    "more keys than bytes": (_set(num_entries=65536), "65536 keys"),
    "many tensors": (_set(num_tensors=HUGE), "tensors, more than the limit"),
    "more tensors than bytes": (_set(num_tensors=131072), "131072 tensors"),
    "one key too many": (lambda b: setattr(b, "num_entries", len(b.entries) + 1), ""),
    "key too long": (lambda b: b.entries.append(struct.pack("<Q", HUGE)), "more than the limit"),
    "key past the end": (lambda b: b.entries.append(struct.pack("<Q", 60000)), "remain"),
    "empty key": (lambda b: b.raw("", U8, b"\1"), "''"),
    "key with NUL": (lambda b: b.raw("a\0b", U8, b"\1"), "x00"),
    "key not UTF-8": (lambda b: b.raw(b"\xff\xfe", U8, b"\1"), "not UTF-8"),
    "key twice": (lambda b: b.put("general.name", STRING, "x"), "general.name is there twice"),
    "unknown type": (_entry(13, b""), "unknown value type 13"),
    "huge type": (_entry(2**32 - 1, b""), "unknown value type"),
    "bool of two": (_entry(BOOL, b"\2"), "a bool holds 2"),
    "string too long": (_entry(STRING, struct.pack("<Q", HUGE)), "more than the limit"),
    "string past the end": (_entry(STRING, struct.pack("<Q", 1 << 23)), "remain"),
    "array of arrays": (_entry(ARRAY, struct.pack("<IQIQ", ARRAY, 1, U8, 0)), "array of arrays"),
    "array of unknown": (_entry(ARRAY, struct.pack("<IQ", 77, 1)), "unknown value type 77"),
    "array past the end": (_entry(ARRAY, struct.pack("<IQ", F32, 1 << 40)), "remain"),
    "array count wraps": (_entry(ARRAY, struct.pack("<IQ", F32, 2**62)), "remain"),
    "too many strings": (_entry(ARRAY, struct.pack("<IQ", STRING, HUGE)), "more than the limit"),
    "more strings than bytes": (_entry(ARRAY, struct.pack("<IQ", STRING, 1 << 20)), "remain"),
    "string in array wraps": (_entry(ARRAY, struct.pack("<IQQ", STRING, 1, 2**64 - 1)), "remain"),
    "alignment zero": (lambda b: b.put("general.alignment", U32, 0), "power of two"),
    "alignment odd": (lambda b: b.put("general.alignment", U32, 48), "power of two"),
    "alignment huge": (lambda b: b.put("general.alignment", U32, 1 << 31), "cut short"),
    "alignment of another type": (lambda b: b.put("general.alignment", U16, 32), "32-bit"),
    "tensor name too long": (_tensor(name="n" * 64), "more than the limit of 63"),
    "tensor name empty": (_tensor(name=""), "''"),
    "tensor twice": (_tensor(name="d2t"), "d2t is there twice"),
    "five dimensions": (_tensor(shape=(1, 1, 1, 1, 32)), "5 dimensions"),
    "huge dimensions": (_tensor(num_dimensions=2**32 - 1), "4294967295 dimensions"),
    "dimension of nothing": (_tensor(shape=(32, 0)), "impossible shape"),
    "product overflows": (_tensor(shape=(2**32, 2**32)), "impossible shape"),
    "dimension wraps": (_tensor(shape=(2**64 - 1,)), "impossible shape"),
    "unknown tensor type": (_tensor(type_id=43), "unknown type 43"),
    "removed tensor type": (_tensor(type_id=31), "removed type Q4_0_4_4"),
    "broken block": (_tensor(shape=(33,), type_id=TYPE_Q4_0), "not a multiple of Q4_0's block 32"),
    "offset unaligned": (_later_offset(1281), "not a multiple of 32"),
    "offset out of file": (_later_offset(1 << 40), "cut short"),
    "offset wraps": (_later_offset(2**64 - 32), "cut short"),
    "offset overlaps": (_later_offset(0), "overlaps token_embd.weight"),
    "offset leaves a gap": (_later_offset(1280 + 32), "expected 1280"),
    "data past the end": (_tensor(shape=(1 << 30,)), "cut short"),
    "split of thousands": (lambda b: b.put("split.count", U16, 65535), "more than the limit of 1024"),
    "split of no kind": (lambda b: b.put("split.count", STRING, "3"), "not a count"),
    "split out of range": (lambda b: b.put("split.count", U16, 2).put("split.no", U16, 2), "part 3 of 2"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_headers_are_refused(tmp_path: Path, case: str) -> None:
    change, message = MALFORMED[case]
    built = small_model()
    change(built)
    path = written(tmp_path, built.build())
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    assert message in caught.value.message
    assert caught.value.message.startswith("model.gguf: ")
    assert caught.value.hint


@pytest.mark.parametrize(("name", "hint"), [("bad.gguf", "fetch the file again"), ("passwd", "path of a .gguf file")])
def test_only_a_file_that_is_named_as_one_is_worth_fetching_again(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_text("root:x:0:0")
    with pytest.raises(ModelFileError, match="not a GGUF file: it starts with 'root'") as caught:
        read_header(tmp_path / name)
    assert hint in caught.value.hint


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = small_model().build()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 1400, 7), *range(1400, len(content) - 24, 97)]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            read_header(path)


def test_only_padding_may_be_missing_at_the_end(tmp_path: Path) -> None:
    content = small_model().build()  # d2t has 40 bytes, padded to 64
    read_header(written(tmp_path, content[:-24]))
    with pytest.raises(ModelFileError, match="cut short"):
        read_header(written(tmp_path, content[:-25]))


@pytest.mark.full
def test_ten_thousand_corruptions_end_in_refusal_or_success(tmp_path: Path) -> None:
    """Bit flips, runs of noise, extreme counts and cuts, in the header of a sound file."""
    built = small_model()
    content, header_bytes = built.build(), len(built.header())
    rng = np.random.default_rng(20_261_120)
    path, refused = tmp_path / "noise.gguf", 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    for number in range(10_000):
        if number == 9_000:  # tracing is slow
            tracemalloc.start()
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, corrupted(content, header_bytes, rng), 0)
        refused += not readable(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    os.close(descriptor)
    assert 7_000 < refused < 7_500
    assert peak_bytes < 1 << 20


def readable(path: Path) -> bool:
    """Anything but ModelFileError fails the test."""
    try:
        header = read_header(path)
    except ModelFileError:
        return False
    for key in header.metadata:
        header.array(key)
    return True


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path, message in ((tmp_path, "is a folder"), (pipe, "not a regular file"), (tmp_path / "no", "No such")):
        with pytest.raises(ModelFileError, match=message):
            read_header(path)
    with pytest.raises(ModelFileError, match="not a path"):
        read_header(Path("nul\0.gguf"))


def shard(number: int, count: int, tensor: str) -> bytes:
    built = GgufBytes().put("split.no", U16, number).put("split.count", U16, count)
    if number == 0:
        built.put("general.architecture", STRING, "llama")
    return built.tensor(tensor, np.full((2, 32), number, np.float32)).build()


def write_shards(folder: Path, names: list[str]) -> list[Path]:
    return [
        written(folder, shard(number, len(names), name), f"big-{number + 1:05}-of-{len(names):05}.gguf")
        for number, name in enumerate(names)
    ]


def test_the_first_shard_stands_for_all(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ["a", "b", "c"])
    header = read_header(paths[0])
    assert [part.path for part in header.shards] == paths
    assert header.file_bytes == sum(path.stat().st_size for path in paths)
    assert [(name, info.shard) for name, info in header.tensors.items()] == [("a", 0), ("b", 1), ("c", 2)]
    assert read_tensor(header, "c")[0, 0] == 2


def test_other_shards_are_refused_with_the_first_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ["a", "b"])
    with pytest.raises(ModelFileError, match="part 2 of 2") as caught:
        read_header(paths[1])
    assert str(paths[0]) in caught.value.hint


def test_missing_double_and_misnamed_shards_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ["a", "a"])
    with pytest.raises(ModelFileError, match="a is there twice"):
        read_header(paths[0])
    paths[1].write_bytes(shard(0, 2, "b"))
    with pytest.raises(ModelFileError, match="part 1, expected part 2"):
        read_header(paths[0])
    paths[1].unlink()
    with pytest.raises(ModelFileError, match="big-00002-of-00002"):
        read_header(paths[0])
    with pytest.raises(ModelFileError, match="its name does not say so"):
        read_header(written(tmp_path, shard(0, 2, "a"), "odd.gguf"))
