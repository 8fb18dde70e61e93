"""Exported heads: imported again they are the same, for every dialect, kind of head and type of weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_checkpoints import DIALECTS, Kind, encoded, random_checkpoint, write_checkpoint
from doubles.exported_heads import REPO, exported
from doubles.imported_heads import imported, understood
from doubles.layered_heads import add_upper_layers
from doubles.medusa_checkpoints import write_random_medusa
from doubles.p_eagle_checkpoints import MASK, NUM_DEPTHS, P_EAGLE_DIALECTS, random_parallel_head, write_parallel_head
from doubles.random_models import TargetShape, write_target
from safetensors.numpy import load_file

from eaglelocal.errors import EagleLocalError, IncompatibleError, ResourceError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import ArrayValue
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor
from eaglelocal.hub.heads import export_folder, head_store
from eaglelocal.hub.heads.export_folder import check_folder, check_target_repo, find_target_repo, read_eagle_head
from eaglelocal.hub.heads.export_tensors import EXPORT_FORMATS, SPECFORGE, SPECULATORS, list_export_notes

SHAPE = TargetShape(n_embd=128, n_layer=6, n_ff=128)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {**LLAMA3, "original_max_position_embeddings": 8192}
KINDS = {
    "EAGLE-3": Kind(),
    "all tokens, own embeddings": Kind(draft_vocab=None, own_embeddings=True),
    "EAGLE-3.1": Kind(fc_norm=True, norm_output=True, norm_before_residual=True),
    "norm before fc": Kind(norm_before_fc=True, norm_output=True),
    "two taps": Kind(num_taps=2),
    "five taps": Kind(num_taps=5, fc_norm=True, norm_output=True),
    "one norm before fc of four taps": Kind(num_taps=4, norm_before_fc=True),
    "narrow": Kind(width=64, n_head=1, own_embeddings=True),
    "llama3": Kind(rope_scaling=LLAMA3),
    "linear": Kind(rope_scaling={"type": "linear", "factor": 4.0}),
    "yarn": Kind(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


def assert_same_head(ours: Path, theirs: Path, *, rtol: float = 0.0) -> None:
    """Both files have the same keys and tensors; fc may have its taps in another order."""
    one, other = read_header(ours), read_header(theirs)
    for key in (one.metadata.keys() | other.metadata.keys()) - {"general.name", "general.file_type"}:
        if key not in ("eagle3.target_layers", "eaglelocal.mask_hidden", "eaglelocal.verifier"):
            if isinstance(one.metadata.get(key), ArrayValue):
                assert one.array(key) == other.array(key), key
            else:
                assert one.metadata.get(key) == other.metadata.get(key), key
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        read = read_indices if tensor.type.name == "I64" else read_tensor
        before, after = read(one, name), read(other, name)
        if name == "fc.weight":
            before, after = order_taps(before, one), order_taps(after, other)
        np.testing.assert_allclose(after, before, rtol=rtol, atol=0, err_msg=name)


def order_taps(fc: np.ndarray, header) -> np.ndarray:
    taps = header.array("eagle3.target_layers")
    return fc.reshape(len(fc), len(taps), -1)[:, np.argsort(taps)]


@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_every_kind_comes_back_bit_for_bit(kind: str, form: str, target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(KINDS[kind]), "speculators")
    head = imported(folder, target, tmp_path / "head.gguf", kind="bf16")
    again = imported(exported(head, tmp_path / "out", form), target, tmp_path / "again.gguf", kind="bf16")
    assert_same_head(head, again)


@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_exported_is_what_was_published(dialect: str, form: str, target: Path, tmp_path: Path) -> None:
    """Names and orders are those of the format; a matrix has the very bits of the published one."""
    head = random_checkpoint(replace(KINDS["EAGLE-3.1"], fc_norm=False))
    path = imported(write_checkpoint(tmp_path / "published", head, dialect), target, tmp_path / "head.gguf", kind="f32")
    folder = exported(path, tmp_path / "out", form)
    found = load_file(folder / "model.safetensors")
    for common, array in head.arrays.items():
        name = common.replace("layer.", f"{EXPORT_FORMATS[form]}.", 1) if common.startswith("layer.") else common
        np.testing.assert_array_equal(found.pop(name), array, err_msg=name)
    assert head.draft_tokens is not None
    np.testing.assert_array_equal(found.pop("d2t") + np.arange(len(head.draft_tokens)), head.draft_tokens)
    np.testing.assert_array_equal(np.flatnonzero(found.pop("t2d")), head.draft_tokens)
    assert not found
    read = understood(folder, target)
    assert read.config.dialect == {SPECULATORS: "speculators", SPECFORGE: "SpecForge"}[form]
    assert (read.stated.taps, read.stated.norm_output, read.stated.norm_before_residual) == (head.taps, True, True)
    assert not read.notes


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_a_type_is_kept_and_a_quantized_one_decoded(kind: str, target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge", dtype="float16")
    head = imported(folder, target, tmp_path / "head.gguf", kind=kind)
    again = imported(exported(head, tmp_path / "out", SPECFORGE), target, tmp_path / "again.gguf", kind="f32")
    assert_same_head(head, again, rtol=2.0**-8 if kind == "q8_0" else 0.0)
    exact = exported(head, tmp_path / "exact", SPECFORGE, kind="f32")
    assert_same_head(head, imported(exact, target, tmp_path / "exact.gguf", kind="f32"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == {"f32": "float32", "f16": "float16"}.get(kind, "bfloat16")


@pytest.mark.parametrize("dialect", P_EAGLE_DIALECTS)
def test_a_p_eagle_head_comes_back(dialect: str, target: Path, tmp_path: Path) -> None:
    head = random_parallel_head(Kind(num_layers=2))
    path = imported(write_parallel_head(tmp_path / "published", head, dialect), target, tmp_path / "head.gguf")
    for form in EXPORT_FORMATS:
        again = imported(exported(path, tmp_path / form, form), target, tmp_path / f"{form}.gguf")
        assert_same_head(path, again)
        info = EagleInfo.from_header(read_header(again))
        assert (info.mask, info.num_depths, info.n_layer) == (MASK, NUM_DEPTHS, 2)
        hidden = load_file(tmp_path / form / "model.safetensors")["mask_hidden"]
        np.testing.assert_array_equal(hidden.reshape(-1), head.arrays["mask_hidden"].reshape(-1))


def test_taps_are_in_the_order_of_layers(target: Path, tmp_path: Path) -> None:
    """vLLM and SGLang collect states as the layers run, whatever the configuration states."""
    head = replace(random_checkpoint(Kind(norm_before_fc=True)), taps=(4, 1, 3))
    path = imported(write_checkpoint(tmp_path / "published", head, "speculators"), target, tmp_path / "head.gguf")
    found = load_file(exported(path, tmp_path / "out", SPECFORGE) / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 3]
    parts = head.arrays["fc.weight"].reshape(128, 3, 128)
    np.testing.assert_array_equal(found["fc.weight"].reshape(128, 3, 128), parts[:, [1, 2, 0]])
    gains = head.arrays["input_norm.weight"].reshape(3, 128)
    np.testing.assert_array_equal(found["input_norm.weight"].reshape(3, 128), gains[[1, 2, 0]])


def test_a_large_head_is_written_in_shards(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge")
    path = imported(folder, target, tmp_path / "head.gguf", kind="bf16")
    whole = load_file(exported(path, tmp_path / "whole", SPECFORGE, kind="f32") / "model.safetensors")
    parts = exported(path, tmp_path / "parts", SPECFORGE, kind="f32", shard_bytes=200_000)
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    files = sorted(parts.glob("model-*.safetensors"))
    assert len(files) > 3 and all(file.name.endswith(f"-of-{len(files):05}.safetensors") for file in files)
    for file in files:
        for name, array in load_file(file).items():
            assert index["weight_map"][name] == file.name
            np.testing.assert_array_equal(array, whole.pop(name))
    assert not whole
    assert_same_head(path, imported(parts, target, tmp_path / "again.gguf", kind="bf16"))


def test_the_target_is_named(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "speculators")
    path = imported(folder, target, tmp_path / "head.gguf")
    info = read_eagle_head(path)
    assert find_target_repo(info) == "somebody/random target"
    config = json.loads((exported(path, tmp_path / "out", SPECULATORS) / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == REPO
    keys = {key: value for key, value in info.header.metadata.items() if "verifier" not in key}
    unnamed = replace(info, header=replace(info.header, metadata=keys))
    assert find_target_repo(unnamed) == ""
    known = replace(unnamed, target_name="Llama 3.1 8B Instruct")
    assert find_target_repo(known) == "meta-llama/Llama-3.1-8B-Instruct"
    with pytest.raises(UsageError, match="neither a repository nor a folder"):
        check_target_repo("Qwen3")


def test_what_the_formats_cannot_state_is_refused(target: Path, tmp_path: Path) -> None:
    def head(name: str, kind: Kind, **more: object) -> Path:
        write = write_parallel_head if kind.own_embeddings else write_checkpoint
        made = random_parallel_head(kind) if kind.own_embeddings else random_checkpoint(kind)
        folder = write(tmp_path / name, made, "speculators", **more)  # type: ignore[operator]
        return imported(folder, target, tmp_path / f"{name}.gguf")

    parallel = head("parallel", Kind(own_embeddings=True, fc_norm=True))
    with pytest.raises(IncompatibleError, match="vLLM does not pass fc_norm on"):
        exported(parallel, tmp_path / "out", SPECULATORS)
    exported(parallel, tmp_path / "flat", SPECFORGE)
    medusa = write_random_medusa(tmp_path / "medusa.gguf", target)
    with pytest.raises(IncompatibleError, match="a Medusa head, which neither format knows"):
        exported(medusa, tmp_path / "out", SPECFORGE)
    with pytest.raises(IncompatibleError, match="is a model, which neither format knows"):
        exported(target, tmp_path / "out", SPECFORGE)
    with pytest.raises(IncompatibleError, match="only P-EAGLE heads of several layers"):
        layered = add_upper_layers(head("plain", Kind()), target, tmp_path / "layered.gguf", num_layers=2)
        exported(layered, tmp_path / "out", SPECFORGE)
    assert not (tmp_path / "out").exists()


def test_what_an_engine_does_otherwise_is_said(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(KINDS["EAGLE-3.1"]), "speculators")
    info = read_eagle_head(imported(folder, target, tmp_path / "head.gguf"))
    assert not list(list_export_notes(info, SPECULATORS))
    (note,) = list_export_notes(info, SPECFORGE)
    assert "SGLang does not read norm_before_residual" in note
    assert any("512" in note for note in list_export_notes(replace(info, window=512), SPECFORGE))


def test_a_folder_is_replaced_only_if_it_is_a_head_and_that_is_asked_for(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge")
    path, out = imported(folder, target, tmp_path / "head.gguf"), tmp_path / "out"
    check_folder(out, is_forced=False)
    out.mkdir()
    check_folder(out, is_forced=False)
    exported(path, out, SPECFORGE)
    with pytest.raises(UsageError, match="exists and is not empty"):
        check_folder(out, is_forced=False)
    check_folder(out, is_forced=True)
    exported(path, out, SPECULATORS)
    assert json.loads((out / "config.json").read_text())["speculators_model_type"] == "eagle3"
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds thesis\.txt"):
        check_folder(out, is_forced=True)
    with pytest.raises(UsageError, match="not a folder"):
        check_folder(path, is_forced=True)


def test_a_full_disk_or_a_failed_write_leaves_nothing(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge")
    path = imported(folder, target, tmp_path / "head.gguf")
    place = tmp_path / "place"
    exported(path, place / "older", SPECFORGE)
    before = (place / "older" / "config.json").read_text()
    monkeypatch.setattr(head_store, "free_bytes", lambda folder: 1000)
    with pytest.raises(ResourceError, match=r"1\.0 kB are free"):
        exported(path, place / "out", SPECFORGE)
    monkeypatch.undo()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_folder.json, "dumps", fail)
    for name in ("out", "older"):
        with pytest.raises(ResourceError, match="No space left on device"):
            exported(path, place / name, SPECULATORS)
    assert sorted(place.iterdir()) == [place / "older"]
    assert (place / "older" / "config.json").read_text() == before


def test_what_a_killed_writer_left_is_deleted(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge")
    path = imported(folder, target, tmp_path / "head.gguf")
    left, own = tmp_path / ".out.999999999-1.partial", tmp_path / ".other.999999999-1.partial"
    for one in (left, own):
        one.mkdir()
        (one / "model.safetensors").write_bytes(encoded(np.zeros(4), "float32").tobytes())
    exported(path, tmp_path / "out", SPECFORGE)
    assert not left.exists() and own.exists()


def test_a_damaged_head_is_one_clear_error(target: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge")
    path = imported(folder, target, tmp_path / "head.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(EagleLocalError, match="cut short"):
        exported(path, tmp_path / "out", SPECFORGE)
    assert not (tmp_path / "out").exists()
