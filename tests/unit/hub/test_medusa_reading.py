"""Medusa heads as they are published: what a folder states, what is taken from it, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_checkpoints import Kind, random_checkpoint, write_checkpoint, write_tensors
from doubles.medusa_checkpoints import (
    LENT,
    MEDUSA_DIALECTS,
    ONE,
    PICKLE,
    TGI,
    VLLM,
    MedusaWeights,
    imported_medusa,
    name_medusa,
    random_medusa,
    understood_medusa,
    write_medusa,
)
from doubles.random_models import TargetShape, write_target

from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.draft_pairing import draft_warnings, head_problem, read_draft
from eaglelocal.gguf.medusa_info import MedusaInfo, is_medusa
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.draft_resolver import find_draft
from eaglelocal.hub.heads.head_folder import read_published
from eaglelocal.hub.heads.head_store import make_head_path
from eaglelocal.hub.heads.medusa_head import is_medusa_head
from eaglelocal.hub.target_resolver import read_target

pytest.importorskip("torch")  # writes the pickle

SHAPE = TargetShape(n_embd=128, n_layer=3, n_ff=128)
HEAD = random_medusa(num_parts=3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


@pytest.mark.parametrize("dialect", MEDUSA_DIALECTS)
def test_a_folder_is_recognised_and_named(dialect: str, target: Path, tmp_path: Path) -> None:
    published = read_published(write_medusa(tmp_path / "head", HEAD, dialect))
    assert is_medusa_head(published)
    head = understood_medusa(tmp_path / "head", target)
    assert head.tensors.dialect == ("vLLM" if dialect == VLLM else "FasterDecoding")
    assert (head.shape.num_parts, head.shape.num_layers, len(head.outputs)) == (3, 1, 3)
    assert head.verifier == ("" if dialect == VLLM else "target")


def test_an_eagle_head_is_not_a_medusa_head(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "head", random_checkpoint(Kind()), "SpecForge")
    assert not is_medusa_head(read_published(folder))


def test_weights_are_those_of_the_folder(target: Path, tmp_path: Path) -> None:
    path = imported_medusa(write_medusa(tmp_path / "head", HEAD, TGI), target, tmp_path / "head.gguf")
    header = read_header(path)
    assert is_medusa(header)
    fc, output = (read_tensor(header, name) for name in ("fc.weight", "output.weight"))
    np.testing.assert_array_equal(fc.reshape(3, 128, -1)[:, :, :128], HEAD.matrices[:, 0])
    assert not fc.reshape(3, 128, -1)[:, :, 128:].any()
    np.testing.assert_array_equal(output.reshape(300, 3, 128).swapaxes(0, 1), np.stack(HEAD.outputs))
    info = read_draft(header, ModelInfo.from_header(read_header(target)))
    assert isinstance(info, MedusaInfo)
    assert (info.method, info.max_draft, info.has_own_outputs) == ("Medusa", 3, True)


def test_a_copy_of_the_targets_lm_head_is_left_out(target: Path, tmp_path: Path) -> None:
    output = read_tensor(read_header(target), "output.weight")
    head = replace(random_medusa(outputs=ONE), outputs=(output,))
    folder = write_medusa(tmp_path / "head", head, VLLM)
    understood = understood_medusa(folder, target)
    assert understood.outputs == ()
    assert any("copy of the target's" in note for note in understood.notes)
    assert "output.weight" not in read_header(imported_medusa(folder, target, tmp_path / "head.gguf")).tensors


def test_vllms_form_with_the_first_lm_head_for_all(target: Path, tmp_path: Path) -> None:
    folder = write_medusa(tmp_path / "head", random_medusa(outputs=LENT), VLLM, original_lm_head=True)
    add_tensors(folder, random_medusa(outputs=LENT), {"lm_heads.0.weight": random_medusa(outputs=ONE).outputs[0]})
    assert len(understood_medusa(folder, target).outputs) == 1


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"medusa_num_heads": 2}, "config.json counts 2 heads, there are 3"),
        ({"vocab_size": 310}, "config.json counts 310 tokens, the target's file 300"),
    ],
)
def test_what_the_configuration_says_otherwise_is_noted(
    keys: dict[str, object], says: str, target: Path, tmp_path: Path
) -> None:
    folder = write_medusa(tmp_path / "head", HEAD, PICKLE, **keys)
    assert says in understood_medusa(folder, target).notes


def test_an_imported_head_is_found_for_a_target_without_layer_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No EAGLE head can draft for such a target."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    target = read_target(write_target(tmp_path / "qwen2.gguf", replace(SHAPE, arch="qwen2")))
    assert head_problem(target.info)
    path = make_head_path(target.info, "head", "f32")
    imported_medusa(write_medusa(tmp_path / "head", HEAD, TGI), target.path, path)
    draft = find_draft("auto", target)
    assert (draft.kind, draft.path) == ("eagle3", path)
    assert draft.label.startswith("Medusa head head")


def test_a_head_for_another_model_is_warned_of(target: Path, tmp_path: Path) -> None:
    other = write_target(tmp_path / "other.gguf", SHAPE)
    header = read_header(imported_medusa(write_medusa(tmp_path / "head", HEAD, TGI), target, tmp_path / "head.gguf"))
    info = MedusaInfo.from_header(header)
    target_header = read_header(other)
    model = replace(ModelInfo.from_header(target_header), name="another model")
    info = replace(info, target_name="the first model")
    assert any("the first model" in text for text in draft_warnings(info, model))


def add_tensors(folder: Path, head: MedusaWeights, more: dict[str, np.ndarray | None]) -> None:
    """Write vLLM's tensors with more of them, or without those that are None."""
    tensors = {**name_medusa(head, VLLM), **more}
    kinds = {"i": "int64", "f": "bfloat16"}
    write_tensors(
        folder, {name: (array, kinds[array.dtype.kind]) for name, array in tensors.items() if array is not None}, 1
    )


WIDE = np.zeros((128, 128), np.float32)
DAMAGED: dict[str, tuple[dict[str, np.ndarray | None], str]] = {
    "unknown": ({"blocks.0.layers.0.scale": WIDE}, "tensors that no Medusa head has: blocks.0.layers.0.scale"),
    "of another head": ({"fc.weight": WIDE}, "tensors that no Medusa head has: fc.weight"),
    "missing layer": ({"blocks.1.layers.0.weight": None}, "the weights of head 1, layer 0 are missing"),
    "missing bias": ({"blocks.2.layers.0.bias": None}, "the biases of head 2, layer 0 are missing"),
    "missing lm_head": ({"lm_heads.1.weight": None}, "there are lm_heads of heads [0, 2], of 3"),
    "two lm_heads": ({"lm_head.weight": np.zeros((300, 128), np.float32)}, "an lm_head of single heads beside it"),
    "wrong matrix": ({"blocks.1.layers.0.weight": WIDE[:64]}, "blocks.1.layers.0.weight is [64, 128]"),
    "wrong bias": ({"blocks.1.layers.0.bias": WIDE[0, :5]}, "blocks.1.layers.0.bias is [5]"),
    "wrong lm_head": ({"lm_heads.1.weight": WIDE}, "lm_heads.1.weight is [128, 128]"),
    "both names": ({"0.0.linear.weight": WIDE}, "are the same part of the head"),
    "a map that names a token twice": ({"token_map": np.zeros(40, np.int64)}, "or one twice"),
    "a map beyond the vocabulary": ({"token_map": np.arange(300, 340)}, "token_map names tokens 300 to 339 of 300"),
    "too many heads": ({"blocks.99.layers.0.weight": WIDE}, "it has 100 heads of 1 layers"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_malformed_and_unknown_tensors_are_refused_by_name(name: str, target: Path, tmp_path: Path) -> None:
    more, says = DAMAGED[name]
    folder = write_medusa(tmp_path / "head", HEAD, VLLM)
    add_tensors(folder, HEAD, more)
    with pytest.raises(EagleLocalError) as caught:
        understood_medusa(folder, target)
    assert says in caught.value.message
    assert "Traceback" not in caught.value.message


CASES: dict[str, Callable[[Path], object]] = {
    "a map without an lm_head": lambda folder: add_tensors(
        folder, random_medusa(outputs=LENT), {"token_map": np.arange(40)}
    ),
    "an lm_head of one head alone": lambda folder: add_tensors(
        folder, random_medusa(outputs=LENT), {"lm_heads.0.weight": np.zeros((300, 128), np.float32)}
    ),
    "no layer at all": lambda folder: write_tensors(folder, {"token_map": (np.arange(4), "int64")}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_halves_of_heads_are_refused(name: str, target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "medusa"}))
    CASES[name](folder)
    with pytest.raises(EagleLocalError) as caught:
        understood_medusa(folder, target)
    assert caught.value.hint


def test_numbers_that_are_not_finite_are_refused_by_name(target: Path, tmp_path: Path) -> None:
    folder = write_medusa(tmp_path / "head", HEAD, VLLM)
    broken = HEAD.matrices[1, 0].copy()
    broken[3, 3] = np.nan
    add_tensors(folder, HEAD, {"blocks.1.layers.0.weight": broken})
    with pytest.raises(EagleLocalError, match=r"blocks\.1\.layers\.0\.weight holds numbers that are not finite"):
        imported_medusa(folder, target, tmp_path / "head.gguf")
    assert not (tmp_path / "head.gguf").exists()
