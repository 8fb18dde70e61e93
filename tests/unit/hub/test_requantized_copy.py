"""Copies of heads in fewer bits: which tensors change, that only rounding differs, and when a copy is used."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from doubles.property_tests import examples
from doubles.random_models import HeadShape, TargetShape, finish, write_head, write_target
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from eaglelocal import locations
from eaglelocal.cli import main
from eaglelocal.core.amounts import format_disk
from eaglelocal.errors import ModelFileError, ResourceError
from eaglelocal.gguf import writer
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor
from eaglelocal.gguf.writer import choose_head_type, choose_tensor_types, requantize_header
from eaglelocal.hub.draft_resolver import FoundDraft
from eaglelocal.hub.draft_resolver import requantize_draft as lightened_draft
from eaglelocal.hub.heads.requantized_copy import (
    ORIGIN_KEY,
    delete_stale_copies,
    find_copies,
    make_copy_path,
    make_light_copy,
)

OWN = HeadShape(own_embeddings=True, own_output=True, draft_vocab=160, fc_norm=True, norm_output=True)
# of a block's largest value: what rounding to 4 bits moves a weight by, at most; llama.cpp's q4_0 has 16 steps
Q4_STEP, Q8_STEP = 1.0 / 8.0, 1.0 / 127.0


@pytest.fixture(autouse=True)
def small_heads_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "light_heads_dir", lambda: tmp_path / "copies")
    monkeypatch.setattr(writer, "MIN_BYTES", 1)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return write_head(tmp_path / "head.gguf", OWN)


def copied(path: Path, kind: str = "q4_0") -> Path:
    return make_light_copy(path, kind, on_progress=lambda share: None)


def block_maxima(values: np.ndarray) -> np.ndarray:
    """The largest value of each block of 32, for every value."""
    blocks = np.abs(values.reshape(-1, 32)).max(axis=1, keepdims=True)
    return np.repeat(blocks, 32, axis=1).reshape(values.shape)


NAMES = ("fc.weight", "output.weight", "blk.0.attn_q.weight", "output_norm.weight")


def values_of(path: Path, name: str) -> list[float]:
    values: list[float] = read_tensor(read_header(path), name).reshape(-1).tolist()
    return values


def in_shards(path: Path, folder: Path) -> Path:
    """The file in two parts, as llama.cpp's splitter writes them; the first."""
    folder.mkdir()
    parts = [folder / f"head-0000{number}-of-00002.gguf" for number in (1, 2)]
    reader = gguf.GGUFReader(path)
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "eagle3")
        if number == 0:
            copy_keys(reader, writer)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for index, tensor in enumerate(reader.tensors):
            if index % 2 == number:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
    return parts[0]


def aligned(path: Path, copy: Path, alignment: int) -> Path:
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(copy, "eagle3")
    copy_keys(reader, writer)
    writer.add_custom_alignment(alignment)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return copy


def copy_keys(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)


def test_a_copy_is_the_head_but_for_rounding(head: Path) -> None:
    copy = copied(head)
    before, after = read_header(head), read_header(copy)
    assert copy.parent == locations.light_heads_dir() and copy.stat().st_size < head.stat().st_size / 4
    eagles = [dataclasses.replace(EagleInfo.from_header(each), name="") for each in (before, after)]
    assert eagles[0] == eagles[1]
    assert list(after.tensors) == list(before.tensors)
    for name, tensor in before.tensors.items():
        if name == "d2t":
            assert read_indices(after, name).tolist() == read_indices(before, name).tolist()
            continue
        theirs, ours = read_tensor(before, name), read_tensor(after, name)
        if len(tensor.shape) == 1:
            np.testing.assert_array_equal(ours, theirs)
            continue
        step = Q8_STEP if name == "token_embd.weight" else Q4_STEP
        assert (np.abs(ours - theirs) <= 1.01 * step * block_maxima(theirs) + 1e-6).all(), name
        assert not np.array_equal(ours, theirs)


def test_its_keys_stay_and_say_whose_copy_it_is(head: Path) -> None:
    before, after = read_header(head), read_header(copied(head))
    changed = {"general.file_type", ORIGIN_KEY}
    assert {k: v for k, v in after.metadata.items() if k not in changed}.keys() == {
        key for key in before.metadata if key not in changed
    }
    assert after.array("tokenizer.ggml.tokens") == before.array("tokenizer.ggml.tokens")
    assert after.metadata[ORIGIN_KEY] == head.absolute().as_uri()


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.builds(
        HeadShape,
        width=st.sampled_from([64, 128]),
        n_ff=st.sampled_from([96, 100, 192]),
        draft_vocab=st.sampled_from([None, 33]),
        own_embeddings=st.booleans(),
        own_output=st.booleans(),
        norm_before_fc=st.booleans(),
    ),
    kind=st.sampled_from(["q4_0", "q8_0"]),
)
def test_what_is_planned_with_is_what_is_written(tmp_path: Path, shape: HeadShape, kind: str) -> None:
    """Whatever dialect, also with rows that do not divide into blocks."""
    path = write_head(tmp_path / f"{abs(hash((shape, kind)))}.gguf", shape)
    planned, there = requantize_header(read_header(path), kind), read_header(copied(path, kind))
    kept = [(tensor.name, tensor.shape, tensor.type, tensor.nbytes) for tensor in there.tensors.values()]
    assert [(tensor.name, tensor.shape, tensor.type, tensor.nbytes) for tensor in planned.tensors.values()] == kept


def test_what_gets_no_lighter(head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert copied(head, "file") == head
    light = copied(head)
    assert copied(light) == light and copied(light, "q8_0") == light, "nothing is made of more bits than it has"
    target = write_target(tmp_path / "target.gguf", TargetShape())
    assert copied(target) == target, "a target answers: it stays as it is"
    monkeypatch.setattr(writer, "MIN_BYTES", read_header(head).tensor_bytes + 1)
    assert copied(head) == head, "small heads lie in caches anyway"


def test_8_bits_become_4(head: Path) -> None:
    eight = copied(head, "q8_0")
    names = choose_tensor_types(read_header(eight), "q4_0")
    assert "fc.weight" in names and "token_embd.weight" not in names


def test_auto_is_the_type_that_was_measured_best() -> None:
    assert [choose_head_type(asked) for asked in ("auto", "q8_0", "file")] == ["q4_0", "q8_0", "file"]


def test_a_copy_is_written_once(head: Path) -> None:
    first = copied(head)
    written_at = first.stat().st_mtime_ns
    assert copied(head) == first and first.stat().st_mtime_ns == written_at
    assert find_copies(head) == [first]


def test_copies_are_listed_next_to_the_models(head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["ls"]) == 0
    assert "quantized head" not in capsys.readouterr().err
    size_bytes = sum(copied(head, kind).stat().st_size for kind in ("q4_0", "q8_0"))
    assert main.run(["ls"]) == 0
    assert f"also on disk: 2 quantized heads, {format_disk(size_bytes)}" in capsys.readouterr().err
    assert main.run(["ls", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["light_heads"]
    assert sum(one["size_bytes"] for one in report) == size_bytes
    assert {Path(one["path"]) for one in report} == set(find_copies(head))


def test_a_damaged_copy_is_written_again(head: Path) -> None:
    copy = copied(head)
    whole = copy.read_bytes()
    os.truncate(copy, len(whole) // 2)
    assert copied(head) == copy and copy.read_bytes() == whole


def test_a_head_that_changed_gets_another_and_the_old_one_goes(head: Path) -> None:
    old = copied(head)
    write_head(head, dataclasses.replace(OWN, seed=7))
    new = copied(head)
    assert new != old and new.is_file() and not old.exists()


def test_copies_of_heads_that_are_gone_go(head: Path, tmp_path: Path) -> None:
    other = write_head(tmp_path / "other.gguf", OWN)
    gone, stays = copied(other), copied(head)
    other.unlink()
    damaged = locations.light_heads_dir() / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    delete_stale_copies(locations.light_heads_dir())
    assert not gone.exists() and not damaged.exists() and stays.is_file()


def test_a_link_and_what_it_leads_to_share_a_copy(head: Path, tmp_path: Path) -> None:
    """As in the hub's cache, where every name is a link."""
    link = tmp_path / "head-link.gguf"
    link.symlink_to(head)
    assert make_copy_path(link, "q4_0").name.split("-")[-2] == make_copy_path(head, "q4_0").name.split("-")[-2]
    copy = copied(link)
    delete_stale_copies(copy.parent)
    assert copy.is_file(), "its name is the link's, and it is current all the same"


def test_without_a_place_for_copies_that_is_said(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto` the head drafts as it is; a type that was asked for is not given up silently."""
    locations.light_heads_dir().write_bytes(b"")  # a file where the folder should be
    found = FoundDraft("eagle3", head, "EAGLE-3.1 head x")
    light = lightened_draft(found, "auto", on_progress=lambda share, what: None)
    assert (light.path, light.label) == (head, "EAGLE-3.1 head x")
    assert light.note.startswith("no copy of the head in q4_0 could be written:") and "as it is" in light.note
    with pytest.raises(ResourceError, match="no copy of the head in q4_0") as raised:
        lightened_draft(found, "q4_0", on_progress=lambda share, what: None)
    assert "--draft-type file" in (raised.value.hint or "")
    locations.light_heads_dir().unlink()
    full = os.statvfs_result((4096, 4096, 1, 0, 0, 1, 0, 0, 0, 255))
    monkeypatch.setattr("eaglelocal.hub.heads.head_store.os.statvfs", lambda folder: full)
    with pytest.raises(ResourceError, match="are free"):
        copied(head)
    assert not list(locations.light_heads_dir().glob("*"))


def test_a_head_in_shards_becomes_one_file(head: Path, tmp_path: Path) -> None:
    first = in_shards(head, tmp_path / "shards")
    copy = copied(first)
    assert copy != first and len(read_header(copy).shards) == 1
    whole = copied(head)
    assert [values_of(copy, name) for name in NAMES] == [values_of(whole, name) for name in NAMES]
    second = first.with_name(first.name.replace("00001", "00002"))
    os.utime(second, ns=(1, 1))
    assert make_copy_path(first, "q4_0") != copy, "a copy is of all shards"


def test_a_layout_of_its_own_is_the_originals_alone(head: Path, tmp_path: Path) -> None:
    wide = aligned(head, tmp_path / "wide.gguf", 64)
    copy = copied(wide)
    assert "general.alignment" not in read_header(copy).metadata
    assert values_of(copy, "fc.weight") == values_of(copied(head), "fc.weight")


def test_what_killed_writers_left_goes(head: Path) -> None:
    folder = copied(head).parent
    left = folder / "other-0123456789ab-q4_0.gguf.999999999-1.partial"
    left.write_bytes(b"x" * 1000)
    assert delete_stale_copies(folder) == 1000 and not left.exists() and copied(head).is_file()


def test_a_path_that_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"k\xf6pfe")
    folder.mkdir()
    head = write_head(tmp_path / "x.gguf", OWN)
    head = head.rename(folder / os.fsdecode(b"k\xf6pf" + b"\xe4\xb8\xad" * 60 + b".gguf"))
    copy = copied(head)
    assert copy != head and find_copies(head) == [copy]
    delete_stale_copies(copy.parent)
    assert copy.is_file()


def test_embeddings_alone_are_no_reason_for_a_copy(head: Path) -> None:
    """They are looked up a row at a time: lighter ones make nothing quicker."""
    light = copied(head)
    header = read_header(light)
    embedding = header.tensors["token_embd.weight"]
    heavy = dataclasses.replace(embedding, type=GGML_TYPES_BY_NAME["F16"], nbytes=2 * embedding.num_elements)
    tensors = {**header.tensors, embedding.name: heavy}
    assert not choose_tensor_types(dataclasses.replace(header, tensors=tensors), "q4_0")


def test_a_head_that_is_cut_short_is_reported_as_such_and_leaves_nothing(head: Path) -> None:
    def cut_while_it_is_read(share: float) -> None:
        os.truncate(head, head.stat().st_size // 2)

    with pytest.raises(ModelFileError, match="cut short"):
        make_light_copy(head, "q4_0", on_progress=cut_while_it_is_read)
    assert not list(locations.light_heads_dir().glob("*"))


def test_whoever_interrupts_leaves_nothing(head: Path) -> None:
    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_light_copy(head, "q4_0", on_progress=interrupt)
    assert not list(locations.light_heads_dir().glob("*"))


def test_the_draft_that_is_loaded_says_that_it_is_a_copy(head: Path) -> None:
    report: list[str] = []
    found = FoundDraft("eagle3", head, "EAGLE-3.1 head x")
    light = lightened_draft(found, "auto", on_progress=lambda share, what: report.append(what))
    assert (light.path, light.origin, light.label) == (copied(head), head, "EAGLE-3.1 head x (q4_0)")
    assert set(report) == {"writing the head in q4_0, once"}
    assert lightened_draft(found, "file", on_progress=lambda share, what: None) == found
    model = FoundDraft("draft_model", head, "draft model y")
    assert lightened_draft(model, "auto", on_progress=lambda share, what: None) == model
    assert lightened_draft(FoundDraft(), "auto", on_progress=lambda share, what: None) == FoundDraft()
