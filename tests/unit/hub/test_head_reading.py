"""Dialects and configurations of heads: what they state, what they leave open, and what is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_checkpoints import DIALECTS, Kind, changed, named, random_checkpoint, write_checkpoint, write_tensors
from doubles.imported_heads import imported, understood
from doubles.p_eagle_checkpoints import (
    FLAT,
    MASK,
    NEMO,
    NUM_DEPTHS,
    P_EAGLE_DIALECTS,
    SPECULATORS,
    random_parallel_head,
    write_parallel_head,
)
from doubles.random_models import TargetShape, write_target

from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_rows, read_tensor
from eaglelocal.hub.heads.head_config import list_tap_readings, read_config
from eaglelocal.hub.heads.tensor_names import map_target_tokens, normalize_tensor_name

SHAPE = TargetShape(n_embd=128, n_layer=6, n_ff=128)
HEAD = random_checkpoint(Kind())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_dialect_is_reported(dialect: str, target: Path, tmp_path: Path) -> None:
    head = understood(write_checkpoint(tmp_path, HEAD, dialect), target)
    assert head.config.dialect == dialect
    assert head.stated.taps == HEAD.taps
    assert not head.notes


@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("midlayer.hidden_norm.weight", "layer.hidden_norm.weight"),
        ("layers.0.mlp.up_proj.weight", "layer.mlp.up_proj.weight"),
        ("model.layers.0.self_attn.q_proj.weight", "layer.self_attn.q_proj.weight"),
        ("module.eagle_module.fc.weight", "fc.weight"),
        ("model.fc_norm.2.weight", "fc_norm.2.weight"),
        ("eagle_module.eagle_lm_head.weight", "lm_head.weight"),
        ("layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
    ],
)
def test_names_of_all_dialects_are_one(name: str, common: str) -> None:
    assert normalize_tensor_name(name) == common


@pytest.mark.parametrize(
    ("ids", "nested", "readings"),
    [
        ((2, 18, 33), False, [(2, 18, 33)]),  # vLLM's usual three, as layer inputs
        ((1, 17, 32), True, [(2, 18, 33)]),  # the same as SGLang counts, outputs
        ((1, 17, 32), False, [(2, 18, 33)]),  # converted from there without a word
        ((1, 17, 34), True, [(2, 18, 35), (1, 17, 34)]),
        ((3, 9, 20), False, [(3, 9, 20), (4, 10, 21)]),
    ],
)
def test_layer_ids_count_inputs_or_outputs(ids: tuple[int, ...], nested: bool, readings: list[tuple[int, ...]]) -> None:
    assert list(list_tap_readings(ids, usual=(2, 18, 33), nested=nested)) == readings


def test_readings_beyond_the_last_layer_are_left_out(target: Path, tmp_path: Path) -> None:
    """As outputs, the last id would be the state behind the last layer, which llama.cpp does not give for llama."""
    head = understood(write_checkpoint(tmp_path, replace(HEAD, taps=(0, 2, 5)), "SafeAILab"), target)
    assert [one.taps for one in head.readings] == [(0, 2, 5)]
    assert head.alternatives() == ()


def test_what_speculators_leave_out_stays_open(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, HEAD, "speculators")
    config = json.loads((folder / "config.json").read_text())
    del config["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(config))
    head = understood(folder, target)
    assert head.stated.norm_before_residual
    assert {reading.norm_before_residual for reading in head.alternatives()} == {True, False}


CONFIG = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 192}


def test_defaults_are_those_of_transformers() -> None:
    config = read_config(CONFIG, prefix="", layer_name="midlayer")
    assert (config.n_kv_head, config.head_dim, config.rms_eps, config.rope.theta) == (2, 64, 1e-6, 10_000.0)
    assert not (config.norm_output or config.fc_norm or config.norm_before_fc or config.ties_embeddings)
    assert config.norm_before_residual is None and config.layer_ids is None and config.window is None


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"sliding_window": 64}, None),  # written by models that do not use it
        ({"sliding_window": 64, "use_sliding_window": True}, 64),
        ({"sliding_window": 64, "layer_types": ["sliding_attention"]}, 64),
        ({"sliding_window": 64, "layer_types": ["full_attention"], "use_sliding_window": True}, None),
        ({"sliding_window": None, "use_sliding_window": True}, None),
    ],
)
def test_a_window_counts_where_it_is_used(
    keys: dict[str, object], window: int | None, target: Path, tmp_path: Path
) -> None:
    assert read_config(CONFIG | keys, prefix="", layer_name="midlayer").window == window
    folder = write_checkpoint(tmp_path / "published", replace(HEAD, more=keys), "SpecForge")
    path = imported(folder, target, tmp_path / "head.gguf")
    assert EagleInfo.from_header(read_header(path)).window == window


@pytest.mark.parametrize("flag", ["norm_output", "return_hidden_post_norm"])
@pytest.mark.parametrize("place", ["top", "eagle_config"])
def test_post_norm_has_two_names_and_two_places(flag: str, place: str) -> None:
    more: dict[str, object] = {flag: True} if place == "top" else {"eagle_config": {flag: True}}
    assert read_config(CONFIG | more, prefix="", layer_name="midlayer").norm_output


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"num_hidden_layers": 2}, ModelFileError, "says 2 layers, the head's tensors are of 1"),
        ({"hidden_act": "gelu"}, IncompatibleError, "activation is gelu"),
        ({"parallel_drafting": True}, ModelFileError, "lacks mask_hidden"),
        ({"partial_rotary_factor": 0.5}, IncompatibleError, "turns 50% of each head"),
        ({"rope_scaling": {"rope_type": "longrope"}}, IncompatibleError, "rope scaling is 'longrope'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, IncompatibleError, "yarn"),
        ({"rope_scaling": {"full_attention": {"rope_theta": 1e6}}}, IncompatibleError, "rope_scaling is"),
        ({"rope_scaling": {"type": "yarn", "truncate": False, "factor": 4}}, IncompatibleError, "sets truncate"),
        ({"hidden_size": "128"}, ModelFileError, "hidden_size is 128, not a count"),
        ({"hidden_size": None}, ModelFileError, "lacks hidden_size"),
        ({"norm_output": "yes"}, ModelFileError, "not true or false"),
        ({"rms_norm_eps": -1}, ModelFileError, "rms_norm_eps"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, ModelFileError, "names 2 layers, fc reads 3"),
        ({"eagle_aux_hidden_state_layer_ids": [1, "2", 3]}, ModelFileError, "layer_ids is"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 90]}, IncompatibleError, "taps layers"),
        ({"target_hidden_size": 64}, IncompatibleError, "hidden size 64, .* has 128"),
        ({"fc_norm": True}, ModelFileError, "says fc_norm, but its weights are missing"),
        ({"norm_before_fc": True}, ModelFileError, "says norm_before_fc"),
        ({"num_attention_heads": 3, "head_dim": 64}, IncompatibleError, "attn_q.weight is"),
        ({"intermediate_size": 191}, IncompatibleError, "ffn"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    more: dict[str, object], error: type[EagleLocalError], says: str, target: Path, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "published", replace(HEAD, more=more), "SafeAILab")
    with pytest.raises(error, match=says):
        imported(folder, target, tmp_path / "head.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


ONES = np.ones((4, 4), np.float32)


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("layer.self_attn.q_norm.weight", ONES[0], "normalises its queries and keys"),
        ("layers.1.mlp.up_proj.weight", ONES, "lacks layers.1.input_layernorm.weight"),
        ("layers.1.hidden_norm.weight", ONES[0], "no EAGLE-3 head has: layers.1.hidden_norm.weight"),
        ("layer.self_attn.q_proj.bias", ONES[0], "has biases"),
        ("layer.self_attn.kv_a_proj_with_mqa.weight", ONES, "MLA"),
        ("mask_hidden", ONES[0], "names no mask token"),
        ("layer.mlp.experts.3.up_proj.weight", ONES, "mixture of experts"),
        ("adapter.weight", ONES, "that no EAGLE-3 head has: adapter.weight"),
        ("fc_norm.4.weight", ONES[0], "holes"),
    ],
)
def test_a_tensor_too_many_is_named(name: str, array: np.ndarray, says: str, target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, replace(HEAD, arrays={**HEAD.arrays, name: array}), "SafeAILab")
    with pytest.raises(EagleLocalError, match=says):
        understood(folder, target)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("layer.mlp.up_proj.weight", "lacks layer.mlp.up_proj.weight"),
        ("layer.hidden_norm.weight", "EAGLE-1 or EAGLE-2"),
        ("fc.weight", "lacks fc.weight"),
    ],
)
def test_a_tensor_too_few_is_named(name: str, says: str, target: Path, tmp_path: Path) -> None:
    arrays = {key: array for key, array in HEAD.arrays.items() if key != name}
    complete = write_checkpoint(tmp_path, HEAD, "SafeAILab")
    config = (complete / "config.json").read_text()
    write_tensors(complete, {named(key, "SafeAILab"): (array, "float32") for key, array in arrays.items()}, 1)
    (complete / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match=says):
        understood(complete, target)


def test_what_changes_nothing_is_left_out(target: Path, tmp_path: Path) -> None:
    more = {"layer.self_attn.q_proj.bias": np.zeros(128, np.float32), "layer.self_attn.rotary_emb.inv_freq": ONES[0]}
    head = understood(write_checkpoint(tmp_path, replace(HEAD, arrays={**HEAD.arrays, **more}), "SafeAILab"), target)
    assert "2 tensors" in head.notes[0]


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0"])
def test_a_copy_of_the_targets_embeddings_is_not_stored(kind: str, tmp_path: Path) -> None:
    """speculators saves one. Where the target's are much coarser than the copy, the copy stays."""
    path = write_target(tmp_path / f"{kind}.gguf", replace(SHAPE, type=kind))
    fine = write_target(tmp_path / "fine.gguf", SHAPE)
    copied = read_tensor(read_header(fine), "token_embd.weight")
    folder = write_checkpoint(tmp_path / "published", changed(HEAD, embed_tokens__weight=copied), "speculators")
    stored = "token_embd.weight" in read_header(imported(folder, path, tmp_path / "head.gguf")).tensors
    assert stored is (kind == "Q4_0")
    assert understood(folder, path).shares_embeddings is not stored


def test_embeddings_of_its_own_are_kept(target: Path, tmp_path: Path) -> None:
    head = random_checkpoint(Kind(own_embeddings=True))
    path = imported(write_checkpoint(tmp_path / "published", head, "speculators"), target, tmp_path / "head.gguf")
    kept = read_tensor(read_header(path), "token_embd.weight")
    np.testing.assert_array_equal(kept, head.arrays["embed_tokens.weight"])
    np.testing.assert_array_equal(read_rows(read_header(path), "token_embd.weight", [7, 0, 299]), kept[[7, 0, 299]])


class Table:
    """A d2t or t2d in memory."""

    def __init__(self, values: object) -> None:
        self._values = np.asarray(values, np.int64)

    def integers(self) -> np.ndarray:
        return self._values


def mapped(d2t: object, t2d: object, *, rows: int = 3, tokens: int = 8) -> list[int] | None:
    found = map_target_tokens(
        None if d2t is None else Table(d2t),  # type: ignore[arg-type]
        None if t2d is None else Table(t2d),  # type: ignore[arg-type]
        num_rows=rows,
        num_tokens=tokens,
    )
    return None if found is None else found.tolist()


MARKS = [0, 1, 0, 0, 1, 1, 0, 0]  # tokens 1, 4, 5


def test_offsets_become_tokens() -> None:
    assert mapped([1, 3, 3], None) == mapped([1, 3, 3], MARKS) == [1, 4, 5]


def test_absolute_ids_are_taken_where_t2d_proves_them() -> None:
    assert mapped([1, 4, 5], MARKS) == [1, 4, 5]


def test_a_whole_vocabulary_needs_no_map() -> None:
    assert mapped(None, None, rows=8) is None
    assert mapped([0] * 8, [1] * 8, rows=8) is None
    assert mapped([7, -1, -1, -1, -1, -1, -1, -1], None, rows=8) == [7, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("d2t", "t2d", "says"),
    [
        (None, None, "no d2t"),
        ([1, 3], None, "2 entries"),
        ([1, 3, 9], None, "tokens 1 to 11 of 8"),
        ([-1, 3, 3], None, "tokens -1 to 5"),
        ([1, 0, 3], None, "token 1 twice"),
        ([0, 0, 0], [1] * 8, "3 tokens, t2d 8"),  # as some trainers start, before they fill it in
        ([1, 3, 3], [0, 1, 1, 0, 1, 0, 0, 0], "1 differ"),
    ],
)
def test_tables_that_cannot_be_are_refused(d2t: object, t2d: object, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        mapped(d2t, t2d)


# ---- P-EAGLE
PARALLEL = random_parallel_head(Kind())


@pytest.mark.parametrize("dialect", P_EAGLE_DIALECTS)
def test_a_parallel_head_comes_with_its_mask(dialect: str, target: Path, tmp_path: Path) -> None:
    folder = write_parallel_head(tmp_path / "published", PARALLEL, dialect)
    head = understood(folder, target)
    assert head.config.dialect == dialect
    assert (head.config.mask, head.config.num_depths, head.shares_embeddings) == (MASK, NUM_DEPTHS, False)
    assert {one.norm_before_residual for one in head.readings} == {False}
    assert not head.stated.norm_output
    assert not head.notes
    header = read_header(imported(folder, target, tmp_path / "head.gguf"))
    assert header.metadata["eaglelocal.mask_token"] == MASK
    assert header.metadata["eaglelocal.num_depths"] == NUM_DEPTHS
    assert header.array("eaglelocal.mask_hidden") == tuple(PARALLEL.arrays["mask_hidden"].reshape(-1).tolist())


def test_where_speculators_say_nothing_a_parallel_heads_residual_is_before_the_norm(
    target: Path, tmp_path: Path
) -> None:
    folder = write_parallel_head(tmp_path, PARALLEL, SPECULATORS)
    config = json.loads((folder / "config.json").read_text())
    del config["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(config))
    assert {one.norm_before_residual for one in understood(folder, target).readings} == {False}


def test_a_mask_has_three_names(target: Path, tmp_path: Path) -> None:
    """A head that has several means the first of them, as vLLM does."""
    for number, (name, dialect) in enumerate(
        (("ptd_token_id", FLAT), ("pard_token", FLAT), ("mask_token_id", NEMO)), start=40
    ):
        folder = write_parallel_head(tmp_path / name, PARALLEL, dialect, **{name: number})
        assert understood(folder, target).config.mask == number


def test_a_parallel_head_that_says_no_length_drafts_the_usual(target: Path, tmp_path: Path) -> None:
    folder = write_parallel_head(tmp_path / "published", PARALLEL, FLAT, num_depths=None)
    assert understood(folder, target).notes == (
        "config.json does not say how many tokens a pass drafts: 8, as is usual",
    )
    assert EagleInfo.from_header(read_header(imported(folder, target, tmp_path / "head.gguf"))).num_depths == 8


@pytest.mark.parametrize(
    ("dialect", "more", "says"),
    [
        (FLAT, {"ptd_token_id": None}, r"names no mask token.*mask_token_id, pard_token, ptd_token_id"),
        (SPECULATORS, {"mask_token_id": None}, "names no mask token"),
        (NEMO, {"mask_token_id": "7"}, "mask_token_id is 7, not a token"),
        (FLAT, {"ptd_token_id": True}, "ptd_token_id is True, not a token"),
        (FLAT, {"ptd_token_id": -1}, "ptd_token_id is -1, not a token"),
        (FLAT, {"ptd_token_id": 300}, "its mask is the token 300 of 300"),
        (FLAT, {"num_depths": 1}, "it drafts 1 tokens in one pass, expected 2 to 64"),
        (FLAT, {"num_depths": 100}, "it drafts 100 tokens in one pass"),
        (FLAT, {"num_depths": "6"}, "num_depths is 6, not a count"),
        (FLAT, {"num_hidden_layers": 4}, "says 4 layers, the head's tensors are of 1"),
    ],
)
def test_a_wrong_mask_is_refused_by_name(
    dialect: str, more: dict[str, object], says: str, target: Path, tmp_path: Path
) -> None:
    folder = write_parallel_head(tmp_path / "published", PARALLEL, dialect, **more)
    with pytest.raises(EagleLocalError, match=says):
        imported(folder, target, tmp_path / "head.gguf")


@pytest.mark.parametrize("dialect", P_EAGLE_DIALECTS)
def test_a_parallel_head_without_its_hidden_state_is_refused(dialect: str, target: Path, tmp_path: Path) -> None:
    folder = write_parallel_head(tmp_path, PARALLEL, dialect)
    config = (folder / "config.json").read_text()
    kept = {name: array for name, array in PARALLEL.arrays.items() if name != "mask_hidden"}
    write_checkpoint(folder, replace(PARALLEL, arrays=kept), "SafeAILab")
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match="lacks mask_hidden"):
        understood(folder, target)


@pytest.mark.parametrize("width", [1, 383, 385])
def test_a_hidden_state_of_another_width_is_refused(width: int, target: Path, tmp_path: Path) -> None:
    head = changed(PARALLEL, mask_hidden=np.ones((1, width), np.float32))
    folder = write_parallel_head(tmp_path / "published", head, FLAT)
    with pytest.raises(ModelFileError, match=f"mask_hidden has {width} numbers, fc reads 384"):
        imported(folder, target, tmp_path / "head.gguf")


# ---- several layers
LAYERED = random_parallel_head(Kind(num_layers=3))


@pytest.mark.parametrize("dialect", P_EAGLE_DIALECTS)
def test_a_head_of_several_layers_becomes_one_file_that_reads_as_one_model(
    dialect: str, target: Path, tmp_path: Path
) -> None:
    folder = write_parallel_head(tmp_path / "published", LAYERED, dialect)
    path = imported(folder, target, tmp_path / "head.gguf")
    header = read_header(path)
    info = EagleInfo.from_header(header)
    assert (info.n_layer, info.draft_vocab, info.method) == (3, 200, "P-EAGLE")
    assert header.array("eaglelocal.draft_tokens") == tuple(LAYERED.draft_tokens.tolist())
    assert header.file_bytes == path.stat().st_size
    assert {name.split(".")[1] for name in header.tensors if name.startswith("blk.")} == {"0", "1", "2"}
    for name, array in (("output.weight", "lm_head"), ("blk.2.ffn_down.weight", "layers.2.mlp.down_proj")):
        np.testing.assert_array_equal(read_tensor(header, name), LAYERED.arrays[f"{array}.weight"])


@pytest.mark.parametrize("part", ["input_layernorm", "self_attn.k_proj", "mlp.gate_proj"])
@pytest.mark.parametrize("layer", [1, 2])
def test_a_missing_tensor_of_a_layer_is_named(part: str, layer: int, target: Path, tmp_path: Path) -> None:
    name = f"layers.{layer}.{part}.weight"
    kept = {key: array for key, array in LAYERED.arrays.items() if key != name}
    folder = write_parallel_head(tmp_path / "published", replace(LAYERED, arrays=kept), FLAT)
    with pytest.raises(ModelFileError, match=f"the head lacks {name}"):
        understood(folder, target)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("layers.2.mlp.up_proj.weight", (191, 128), r"blk\.2\.ffn_up\.weight is \(128, 191\), expected \(128, 192\)"),
        ("layers.1.self_attn.q_proj.weight", (100, 128), "no matrix of heads 64 rows high"),
        ("layers.1.post_attention_layernorm.weight", (64,), r"blk\.1\.ffn_norm\.weight"),
    ],
)
def test_a_malformed_tensor_of_a_layer_is_named(
    name: str, shape: tuple[int, ...], says: str, target: Path, tmp_path: Path
) -> None:
    head = replace(LAYERED, arrays={**LAYERED.arrays, name: np.ones(shape, np.float32)})
    folder = write_parallel_head(tmp_path / "published", head, FLAT)
    with pytest.raises(EagleLocalError, match=says):
        imported(folder, target, tmp_path / "head.gguf")


def test_several_layers_without_a_mask_are_refused(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, random_checkpoint(Kind(num_layers=2)), "SafeAILab")
    with pytest.raises(IncompatibleError, match="has 2 layers, and only P-EAGLE heads of several layers are run"):
        understood(folder, target)


def test_several_layers_need_an_output(target: Path, tmp_path: Path) -> None:
    kept = {name: array for name, array in LAYERED.arrays.items() if name != "lm_head.weight"}
    head = replace(LAYERED, arrays=kept, draft_tokens=None)
    folder = write_parallel_head(tmp_path / "published", head, FLAT)
    with pytest.raises(IncompatibleError, match="3 layers and no lm_head"):
        understood(folder, target)


def test_layers_that_say_fewer_are_refused(target: Path, tmp_path: Path) -> None:
    folder = write_parallel_head(tmp_path / "published", LAYERED, FLAT, num_hidden_layers=2)
    with pytest.raises(ModelFileError, match="says 2 layers, the head's tensors are of 3"):
        understood(folder, target)
