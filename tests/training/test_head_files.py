"""A head read from a file is written back unchanged; a new head is one that its target's engine accepts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import gguf
import numpy as np
import pytest
from doubles.eagle_files import WIDTH, Form, head_source, small_kind, write_form, write_small_target
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.runnable_models import N_VOCAB

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.draft_pairing import read_draft
from eaglelocal.gguf.eagle_info import FC_NORM_EPS_KEY, VERIFIER_KEY, WINDOW_KEY, EagleInfo
from eaglelocal.gguf.header import Header, ValueType
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor
from eaglelocal.gguf.writer import KeyValue, copy_entries
from eaglelocal.hub.heads.head_store import write_head_file

torch = pytest.importorskip("torch")

from eaglelocal.training import draft_head as draft_head_module  # noqa: E402
from eaglelocal.training.draft_head import HeadSource, choose_vocabulary, make_draft_head, select_frequent_tokens  # noqa: E402
from eaglelocal.training.head_file import make_head_entries, make_head_name, make_head_tensors  # noqa: E402

pytestmark = pytest.mark.full

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
KEYS = (
    KeyValue(FC_NORM_EPS_KEY, ValueType.FLOAT32, 0.5),
    KeyValue(WINDOW_KEY, ValueType.UINT32, 512),
    KeyValue(VERIFIER_KEY, ValueType.STRING, "somebody/target"),
    KeyValue("eagle3.rope.scaling.type", ValueType.STRING, "linear"),
    KeyValue("eagle3.rope.scaling.factor", ValueType.FLOAT32, 2.0),
)
FORMS = {
    "EAGLE-3": Form(kind=small_kind()),
    "EAGLE-3.1": Form(kind=small_kind(fc_norm=True, norm_output=True, norm_before_residual=True)),
    "one norm before fc": Form(kind=small_kind(norm_before_fc=True, norm_output=True)),
    "all words, its own embeddings": Form(kind=small_kind(draft_vocab=None, own_embeddings=True)),
    "words in any order": Form(kind=small_kind(draft_vocab=3), d2t=(250, 7, 19)),
    "a lent output": Form(kind=small_kind(draft_vocab=None), lends_output=True),
    "four taps": Form(kind=small_kind(num_taps=4, first_tap=0, fc_norm=True, norm_output=True)),
    "one norm of two taps": Form(kind=small_kind(num_taps=2, norm_before_fc=True)),
    "llama3": Form(kind=small_kind(rope_scaling=LLAMA3)),
    "keys": Form(kind=small_kind(fc_norm=True), entries=KEYS),
}
NOT_COMPARED = {"name", "target_name", "header"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_target(tmp_path_factory.mktemp("target") / "target.gguf", "llama", tied=False)


@pytest.mark.parametrize("form", FORMS)
def test_a_head_goes_into_a_file_as_it_came(form: str, target: Path, tmp_path: Path) -> None:
    first = write_form(tmp_path, FORMS[form], target)
    again = through_torch(head_source(target, first), tmp_path / "again.gguf")
    check_same_head(read_header(first), again)


def test_a_file_laid_out_otherwise(target: Path, tmp_path: Path) -> None:
    """Alignment, and what tells of parts, are the old file's own."""
    first = aligned(write_form(tmp_path, FORMS["EAGLE-3.1"], target), tmp_path / "aligned.gguf", 64)
    again = through_torch(head_source(target, first), tmp_path / "again.gguf")
    check_same_head(read_header(first), again)
    assert not [key for key in again.metadata if key.startswith("split.") or key == "general.alignment"]


def aligned(path: Path, to: Path, alignment: int) -> Path:
    header = read_header(path)
    writer = gguf.GGUFWriter(str(to), "eagle3")
    writer.add_custom_alignment(alignment)
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 1)
    for entry in copy_entries(header, without=frozenset()):
        element = None if entry.element_type is None else gguf.GGUFValueType(entry.element_type)
        writer.add_key_value(entry.key, entry.value, gguf.GGUFValueType(entry.type), sub_type=element)
    for name, values in tensors_in(header).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


def through_torch(source: HeadSource, path: Path, new_tokens: np.ndarray | None = None, *, kind: str = "f32") -> Header:
    """Checked as the engine would."""
    words = choose_vocabulary(source, new_tokens)
    draft_head = make_draft_head(source, words, max_context=64)
    entries = make_head_entries(draft_head.head, source, name=make_head_name(source), kind=kind)
    with write_head_file(path, entries, make_head_tensors(draft_head, words, kind), on_progress=lambda fraction: None):
        pass
    header = read_header(path)
    read_draft(header, source.target)
    return header


def check_same_head(first: Header, again: Header) -> None:
    before, after = tensors_in(first), tensors_in(again)
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    one, other = EagleInfo.from_header(first), EagleInfo.from_header(again)
    for field in fields(EagleInfo):
        if field.name not in NOT_COMPARED:
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    rope = [key for key in first.metadata if ".rope." in key or key == VERIFIER_KEY]
    assert {key: first.metadata[key] for key in rope} == {key: again.metadata.get(key) for key in rope}
    assert other.name == f"{one.name}, trained here"


def tensors_in(header: Header) -> dict[str, np.ndarray]:
    return {name: (read_indices if name == "d2t" else read_tensor)(header, name) for name in header.tensors}


def test_a_head_that_was_trained_here_keeps_its_name(target: Path, tmp_path: Path) -> None:
    first = write_form(tmp_path, FORMS["EAGLE-3"], target)
    once = through_torch(head_source(target, first), tmp_path / "once.gguf")
    twice = through_torch(head_source(target, once.path), tmp_path / "twice.gguf")
    assert EagleInfo.from_header(once).name == EagleInfo.from_header(twice).name


@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("llama", True), ("qwen3", False)])
@pytest.mark.parametrize("num_words", [None, 40])
def test_a_new_head_fits_its_target(architecture: str, tied: bool, num_words: int | None, tmp_path: Path) -> None:
    target = write_small_target(tmp_path / "target.gguf", architecture, tied=tied)
    tokens = None if num_words is None else np.sort(np.random.default_rng(2).permutation(N_VOCAB)[:num_words])
    torch.manual_seed(1)
    header = through_torch(head_source(target), tmp_path / "new.gguf", tokens)
    info = EagleInfo.from_header(header)
    flags = (info.fc_norm, info.norm_output, info.norm_before_residual, info.norm_before_fc)
    assert flags == (True, True, True, False)
    assert (info.width, info.draft_vocab, info.has_own_output) == (WIDTH, num_words, num_words is not None)
    assert info.target_layers == (1, 2, 3)
    assert not info.has_own_embeddings
    if tokens is not None:
        lent = read_tensor(read_header(target), "token_embd.weight" if tied else "output.weight")
        np.testing.assert_array_equal(read_indices(header, "d2t"), tokens)
        np.testing.assert_array_equal(read_tensor(header, "output.weight"), lent[tokens])


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_a_head_in_fewer_bits_is_nearly_the_same(kind: str, target: Path, tmp_path: Path) -> None:
    first = write_form(tmp_path, FORMS["EAGLE-3.1"], target)
    again = through_torch(head_source(target, first), tmp_path / "again.gguf", kind=kind)
    before, after = tensors_in(read_header(first)), tensors_in(again)
    for name in before:
        np.testing.assert_allclose(after[name], before[name], atol=0.02 * np.abs(before[name]).max(), err_msg=name)


def test_targets_that_no_new_head_can_read(tmp_path: Path) -> None:
    shallow = write_target(tmp_path / "shallow.gguf", TargetShape(n_layer=3))
    with pytest.raises(IncompatibleError, match="3 layers"):
        draft_head_module.choose_head_shape(head_source(shallow), max_context=64)


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ([5, 0, 9, 9, 1], 5, None),
        ([5, 0, 9, 9, 1], 3, [0, 2, 3]),
        ([5, 0, 9, 9, 1], 1, [2]),
        ([0, 0, 7, 0], 3, [0, 1, 2]),
    ],
)
def test_the_tokens_said_most_often(counts: list[int], most: int, expected: list[int] | None) -> None:
    found = select_frequent_tokens(np.array(counts), most)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize(
    ("n_vocab", "num_used", "expected"),
    [(600, 5, 600), (32_000, 5, 32_000), (49_152, 5, 16_384), (49_152, 20_345, 20_345), (151_936, 90_000, 32_000)],
)
def test_a_new_head_predicts_the_tokens_of_its_texts(n_vocab: int, num_used: int, expected: int) -> None:
    counts = np.zeros(n_vocab, np.int64)
    counts[:num_used] = 3
    assert draft_head_module.choose_vocabulary_size(counts) == expected


def test_embeddings_are_those_of_the_tokens(target: Path, tmp_path: Path) -> None:
    own = write_head(tmp_path / "own.gguf", HeadShape(own_embeddings=True), TargetShape(n_embd=128, n_vocab=N_VOCAB))
    tokens = [7, 3, 7, 299, 0]
    for path, source in ((target, head_source(target)), (own, head_source(target, own))):
        table = read_tensor(read_header(path), "token_embd.weight")
        np.testing.assert_array_equal(choose_vocabulary(source, None).read_embeddings(tokens), table[tokens])
