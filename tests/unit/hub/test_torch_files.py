"""torch's own files, read without torch: the saved tensors are returned, and no code of a pickle runs."""

from __future__ import annotations

import io
import os
import pickle
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_checkpoints import DIALECTS, Kind, named, random_checkpoint, write_checkpoint
from doubles.imported_heads import imported
from doubles.random_models import TargetShape, write_target
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor
from eaglelocal.hub.heads.torch_files import read_pickled


def archive(path: Path, content: bytes, **stored: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("head/data.pkl", content)
        for key, raw in stored.items():
            file.writestr(f"head/data/{key}", raw)
    return path


class Asks:
    """A pickle that would run a command, as a hostile one does."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_nothing_that_it_asks_for_is_run(tmp_path: Path) -> None:
    path = archive(tmp_path / "pytorch_model.bin", pickle.dumps({"fc.weight": Asks(tmp_path / "ran")}))
    with pytest.raises(ModelFileError, match=r"asks for (posix|nt)\.system, which no tensor needs"):
        read_pickled(path)
    assert not (tmp_path / "ran").exists()


def test_a_compressed_pickle_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("head/data.pkl", bytes(1 << 20))
    with pytest.raises(ModelFileError, match="of a sane size"):
        read_pickled(path)


def test_a_memo_takes_no_memory_for_places_that_are_not_used(tmp_path: Path) -> None:
    content = b"\x80\x02}r" + (2**31).to_bytes(4, "little") + b"."
    assert read_pickled(archive(tmp_path / "x.bin", content)) == {}


def nested(depth: int) -> bytes:
    """A tuple of two tuples of two tuples ..., all the same one: a few bytes a level, twice the leaves."""
    return b")" + b"".join(b"q%ch%c\x86" % (level, level) for level in range(depth))


@pytest.mark.parametrize(
    "content",
    [
        b"}" + nested(60) + b"Ns.",  # as a key
        b"ccollections\nOrderedDict\n]" + nested(60) + b"N\x86a\x85R.",  # of a list of pairs
        b"\x8f(" + nested(60) + b"\x90.",  # in a set
        nested(60) + b"Q.",  # as a name of a storage
        b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00" + nested(60) + b")tR.",
    ],
    ids=["key", "pairs", "set", "storage", "shape"],
)
def test_what_hashing_would_take_ages_for_is_refused_at_once(content: bytes, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ModelFileError):
        read_pickled(archive(tmp_path / "x.bin", b"\x80\x04" + content))
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("value", [3, [1, 2], {"a": 1}, {1: 2}, "text"])
def test_what_is_no_dictionary_of_tensors_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no plain dictionary"):
        read_pickled(archive(tmp_path / "x.bin", pickle.dumps(value)))


@pytest.mark.parametrize("raw", [b"", b"\x80\x02}q\x00.", b"PK\3\4" + bytes(100)])
def test_what_is_no_archive_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match="not in torch's present format"):
        read_pickled(path)


@pytest.fixture(scope="module")
def saved() -> bytes:
    """A small dictionary as torch saves it, one tensor being the middle of another's storage."""
    torch = pytest.importorskip("torch")
    whole = torch.arange(40, dtype=torch.float32).reshape(8, 5)
    tensors = {"a": whole, "b": whole[2:4], "c": whole.to(torch.bfloat16), "d": torch.arange(7), "e": whole > 9}
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def test_what_torch_saved_comes_back(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(saved)
    tensors = read_pickled(path)
    whole = np.arange(40, dtype=np.float32).reshape(8, 5)
    np.testing.assert_array_equal(tensors["a"].floats(), whole)
    np.testing.assert_array_equal(tensors["b"].rows(1, 2), whole[3:4])
    np.testing.assert_array_equal(tensors["c"].floats(), whole)
    np.testing.assert_array_equal(tensors["d"].integers(), np.arange(7))
    np.testing.assert_array_equal(tensors["e"].integers(), whole > 9)


def test_a_view_that_is_not_in_order_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"t": torch.arange(6).reshape(2, 3).T}, tmp_path / "x.bin")
    with pytest.raises(ModelFileError, match="does not lie in order"):
        read_pickled(tmp_path / "x.bin")


@given(at=st.integers(0, 5000), value=st.integers(0, 255), cut=st.none() | st.integers(0, 5000))
def test_any_byte_may_be_wrong(
    at: int, value: int, cut: int | None, saved: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(saved)
    raw[at % len(raw)] = value
    path = tmp_path_factory.mktemp("fuzzed") / "x.bin"
    path.write_bytes(raw[:cut])
    try:
        for tensor in read_pickled(path).values():
            assert (tensor.floats() if tensor.is_float else tensor.integers()).shape == tensor.shape
    except ModelFileError:
        pass


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_head_comes_out_of_it_as_out_of_safetensors(dialect: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    target = write_target(tmp_path / "target.gguf", TargetShape(n_embd=128, n_layer=6, n_ff=128))
    head = random_checkpoint(Kind(fc_norm=True))
    folder = write_checkpoint(tmp_path / "published", head, dialect)
    first = imported(folder, target, tmp_path / "first.gguf")
    assert head.draft_tokens is not None
    tensors = {
        named(name, dialect): torch.from_numpy(np.array(array)).bfloat16() for name, array in head.arrays.items()
    }
    offsets = head.draft_tokens - np.arange(len(head.draft_tokens))
    torch.save(tensors | {named("d2t", dialect): torch.from_numpy(offsets)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    second = imported(folder, target, tmp_path / "second.gguf")
    headers = read_header(first), read_header(second)
    assert headers[0].tensors == headers[1].tensors
    for name in headers[0].tensors:
        read = read_indices if name == "d2t" else read_tensor
        np.testing.assert_array_equal(read(headers[0], name), read(headers[1], name))
