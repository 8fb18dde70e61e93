"""Models made of another model: the same logits, honest labels, whole files or none, and clear errors."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.demo_sources import DemoSources
from doubles.layered_heads import add_upper_layers
from doubles.plain_llama import drafted, logits_of
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal import locations
from eaglelocal.catalog.reference import DerivedModel, File
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.derived_models import (
    DerivedFile,
    Inflation,
    LayerDrop,
    Recipe,
    Requantization,
    choose_dropped,
    derive_head,
    derive_target,
    write_derived,
)
from eaglelocal.hub.draft_resolver import find_draft, write_draft
from eaglelocal.hub.inflation import generated_files
from eaglelocal.hub.inflation.generated_files import no_progress
from eaglelocal.hub.inflation.inflated_sizes import ModelSize
from eaglelocal.hub.inventory import list_derived
from eaglelocal.hub.target_resolver import find_target, write_target

pytestmark = pytest.mark.full

MAX_WIDTH = 512  # of the models that are inflated to 60 M
TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 24)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return locations.generated_models_dir()


def inflation(millions: int, kind: str = "f32") -> Inflation:
    return Inflation(ModelSize(millions * 1_000_000, kind))


def model_in(path: Path) -> ModelInfo:
    return ModelInfo.from_header(read_header(path))


def make(path: Path, recipe: Recipe) -> DerivedFile:
    made = derive_target(model_in(path), recipe, f"{path}@{recipe.text}")
    return write_derived(made, on_progress=no_progress)


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, in standard deviations of the logits."""
    finite = np.isfinite(theirs)
    assert np.array_equal(finite, np.isfinite(ours))
    return float(np.abs(ours[finite] - theirs[finite]).max() / theirs[finite].std())


@st.composite
def sources(draw: st.DrawFn) -> DemoSources:
    head_dim = draw(st.sampled_from([32, 64, 128]))
    most = MAX_WIDTH // head_dim
    kv_heads = draw(st.integers(1, min(most, 4)))
    group = draw(st.integers(1, min(most // kv_heads, 4)))
    width = head_dim * kv_heads * group
    return DemoSources(
        width=width,
        head_dim=head_dim,
        kv_heads=kv_heads,
        head_kv_heads=kv_heads,
        layers=draw(st.integers(3, 9)),
        ffn=32 * draw(st.integers(1, 20)),
        head_ffn=32 * draw(st.integers(1, 20)),
        vocab=320,
        is_tied=draw(st.booleans()),
    )


@examples(15)
@given(sources(), st.sampled_from([60, 90]))
def test_any_llama_says_the_same_inflated(source: DemoSources, millions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target, head = source.write(Path(folder))
        made = make(target, inflation(millions))
        size = sum(tensor.num_elements for tensor in made.header.tensors.values())
        assert abs(size / (millions * 1e6) - 1) < 0.05
        assert distance(logits_of(made.path, TEXT), logits_of(target, TEXT)) < 1e-4
        made_head = write_derived(derive_head(made, EagleInfo.from_header(read_header(head))), on_progress=no_progress)
        ours, theirs = drafted(made.path, made_head.path, TEXT, 4), drafted(target, head, TEXT, 4)
        assert distance(ours, theirs) < 1e-3
        made.path.unlink()
        made_head.path.unlink()


@pytest.mark.parametrize("stored", ["q4_1", "q8_0", "bf16", "f16"])
def test_every_type_on_disk_can_grow(tmp_path: Path, stored: str) -> None:
    """The reference is the source in f32: llama.cpp rounds activations for other types."""
    target, _ = DemoSources(stored=stored, is_tied=False).write(tmp_path)
    plain, grown = make(target, Requantization("f32")), make(target, inflation(20))
    assert distance(logits_of(grown.path, TEXT), logits_of(plain.path, TEXT)) < 1e-4


def test_k_quants_on_disk_can_grow(tmp_path: Path) -> None:
    target, _ = DemoSources(ffn=768).write(tmp_path)
    quantized = make(target, Requantization("q4_k_m"))
    kinds = {tensor.type.name for tensor in quantized.header.tensors.values()}
    assert {"Q4_K", "Q6_K"} <= kinds
    plain, grown = make(quantized.path, Requantization("f32")), make(quantized.path, inflation(20))
    assert distance(logits_of(grown.path, TEXT), logits_of(plain.path, TEXT)) < 1e-4


@pytest.mark.parametrize("kind", ["q8_0", "q6_k", "q4_k_m"])
def test_inflated_models_are_quantized_by_llama_cpp(tmp_path: Path, kind: str) -> None:
    """Widths are whole blocks, so every matrix has a type of the kind; and padding stays silent: they lose no more than
    the small model in that type does.
    """
    target, _ = DemoSources().write(tmp_path)
    grown = make(target, inflation(20, kind))
    kinds = {tensor.type.name for tensor in grown.header.tensors.values() if len(tensor.shape) == 2}
    assert kinds <= {"Q8_0", "Q6_K", "Q4_K"} and grown.header.metadata["general.file_type"] in (7, 18, 15)
    ours, theirs = (logits_of(made.path, TEXT) for made in (grown, make(target, Requantization(kind))))
    exact = logits_of(target, TEXT)
    assert distance(ours, exact) < 1.3 * distance(theirs, exact)


def test_a_model_without_layers_that_add_nothing_says_the_same(tmp_path: Path) -> None:
    dropped = tuple(choose_dropped(9, 3))
    target, _ = DemoSources(layers=9, silent_layers=dropped).write(tmp_path)
    made = make(target, LayerDrop(3))
    assert made.header.metadata["llama.block_count"] == 6
    assert distance(logits_of(made.path, TEXT), logits_of(target, TEXT)) < 1e-5
    other, _ = DemoSources(layers=9).write(tmp_path)  # there all layers matter
    assert distance(logits_of(make(other, LayerDrop(3)).path, TEXT), logits_of(other, TEXT)) > 0.1


@given(st.integers(3, 100), st.data())
def test_the_first_and_the_last_layer_stay(n_layer: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, n_layer - 2))
    dropped = choose_dropped(n_layer, number)
    assert len(set(dropped)) == number and min(dropped) >= 1 and max(dropped) <= n_layer - 2


RECIPES = [inflation(20), inflation(20, "q8_0"), LayerDrop(2), LayerDrop(2, "q8_0"), Requantization("q8_0")]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.text)
def test_the_sketch_is_the_header_of_the_file(tmp_path: Path, cache: Path, recipe: Recipe) -> None:
    target, _ = DemoSources().write(tmp_path)
    sketched = derive_target(model_in(target), recipe, "reference")
    assert not cache.exists(), "planning writes nothing"
    written = write_derived(sketched, on_progress=no_progress)
    assert [path.name for path in cache.glob("*.gguf*")] == [written.path.name]
    assert _outline(sketched.header) == _outline(written.header)
    assert derive_target(model_in(target), recipe, "reference") == written, "the second time it is found"


def _outline(header: Header) -> object:
    tensors = {name: (tensor.shape, tensor.type.name) for name, tensor in header.tensors.items()}
    keys = {
        key: float(np.float32(value)) if isinstance(value, float) else value
        for key, value in header.metadata.items()
        if isinstance(value, int | float | str) and key not in ("general.quantization_version", "general.alignment")
    }
    return tensors, keys


def test_files_say_what_they_are(tmp_path: Path) -> None:
    target, head = DemoSources().write(tmp_path)
    grown = make(target, inflation(20, "bf16"))
    assert grown.label == "source-target at the cost of a 20 M model (bf16)"
    assert grown.header.metadata["general.name"] == "test guide at the cost of a 20 M model"
    assert "test guide" in str(grown.header.metadata["eaglelocal.inflated_from"])
    made_head = write_derived(derive_head(grown, EagleInfo.from_header(read_header(head))), on_progress=no_progress)
    assert "at the cost of a 20 M model's" in str(made_head.header.metadata["general.name"])
    dropped = make(target, LayerDrop(2))
    assert dropped.header.metadata["general.name"] == "source-target without 2 of its 6 layers"


def find(path: Path, recipe: str) -> DerivedModel:
    return DerivedModel(File(path), recipe)


@pytest.mark.parametrize("draft_vocab", [None, 100])
def test_a_head_of_the_small_model_drafts_for_the_inflated_one(
    tmp_path: Path, cache: Path, draft_vocab: int | None
) -> None:
    target, head = DemoSources(draft_vocab=draft_vocab).write(tmp_path)
    found = find_target(find(target, "100m:f32"), on_progress=None)
    draft = find_draft(str(head), found)
    assert (draft.kind, draft.made is not None) == ("eagle3", True) and draft.label.endswith("inflated to 100 M")
    assert not cache.exists()
    found, draft = write_target(found, on_progress=no_progress), write_draft(draft, on_progress=no_progress)
    assert draft.path is not None
    ours, theirs = drafted(found.path, draft.path, TEXT, 4), drafted(target, head, TEXT, 4)
    assert distance(ours, theirs) < 1e-3
    assert find_draft(str(draft.path), found).path == draft.path, "an inflated head is taken as it is"


def test_a_head_of_another_model_is_refused_in_the_small_models_figures(tmp_path: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    _, head = DemoSources(width=320, kv_heads=5).write(other)
    found = find_target(find(target, "100m"), on_progress=None)
    with pytest.raises(IncompatibleError, match="made for hidden size 320, the target has 256"):
        find_draft(str(head), found)


def test_a_head_of_several_layers_is_not_inflated(tmp_path: Path) -> None:
    target, small = DemoSources(norm_output=False, num_depths=4).write(tmp_path)
    head = add_upper_layers(small, target, tmp_path / "layered.gguf", num_layers=2)
    draft = find_draft(str(head), find_target(find(target, "100m"), on_progress=None))
    assert draft.kind == "ngram" and draft.reason.endswith("cannot be inflated: only EAGLE-3 heads of one layer can")


def test_copies_draft_for_the_model_and_for_its_inflation(tmp_path: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    found = find_target(find(target, "100m"), on_progress=None)
    for recipe, label in (("drop2", "without 2 of its 6 layers"), ("q4_0", "requantized to q4_0")):
        for one in (found, find_target(File(target), on_progress=None)):
            draft = find_draft(f"{target}@{recipe}", one)
            assert draft.kind == "draft_model" and draft.label == f"draft model source-target {label}"
            assert write_draft(draft, on_progress=no_progress).path == draft.path
            assert draft.path is not None and draft.path.exists()


def test_an_inflated_model_has_the_small_ones_draft(tmp_path: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    found = find_target(find(target, "100m"), on_progress=None)
    assert find_draft("auto", found).reason == "no head is known for this target"


# ---- what cannot be made
def test_models_that_cannot_be_made_are_refused_with_a_hint(tmp_path: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    experts = DemoSources()._target(np.random.default_rng(1))
    experts.tensor("blk.0.ffn_gate_inp.weight", np.zeros((4, 256), np.float32))
    (tmp_path / "experts.gguf").write_bytes(experts.build())
    biased = DemoSources()._target(np.random.default_rng(1))
    biased.tensor("blk.0.attn_q.bias", np.zeros(256, np.float32))
    (tmp_path / "biased.gguf").write_bytes(biased.build())
    header = read_header(target)
    other = replace(header, metadata={**header.metadata, "general.architecture": "qwen2"})
    keys = {f"qwen2.{key.removeprefix('llama.')}": value for key, value in header.metadata.items() if "llama" in key}
    other = replace(other, metadata={**other.metadata, **keys})
    refusals: list[tuple[Header, Recipe, type[EagleLocalError], str]] = [
        (header, inflation(2), ResourceError, "no shape of 2 M parameters holds the"),
        (header, LayerDrop(5), UsageError, "cannot leave out 5 layers of test guide: it has 6"),
        (other, inflation(20), IncompatibleError, "cannot inflate test guide: it is a qwen2 model"),
        (read_header(tmp_path / "experts.gguf"), inflation(20), IncompatibleError, "test guide: it has experts"),
        (read_header(tmp_path / "experts.gguf"), LayerDrop(2), IncompatibleError, "test guide out: they differ"),
        (read_header(tmp_path / "biased.gguf"), inflation(20), IncompatibleError, "the tensor blk.0.attn_q.bias"),
    ]
    for source, recipe, kind, message in refusals:
        with pytest.raises(kind) as refused:
            derive_target(ModelInfo.from_header(source), recipe, "x")
        assert message in refused.value.message and refused.value.hint, message


def test_a_model_is_not_made_of_a_derived_one(tmp_path: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    found = find_target(File(target), on_progress=None)
    with pytest.raises(UsageError, match="unknown draft"):
        find_draft(f"{target}@drop2@q4_0", found)
    with pytest.raises(UsageError, match="cannot make `@best` of a model"):
        find_draft(f"{target}@best", found)


def test_a_source_that_is_gone_is_a_line_that_says_so(tmp_path: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    make(target, LayerDrop(2))
    unwritten = derive_target(model_in(target), LayerDrop(3), "x")
    target.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(ModelFileError, match=r"source-target\.gguf does not exist"):
        find_target(find(target, "drop2"), on_progress=None)
    with pytest.raises(ModelFileError, match="No such file"):
        write_derived(unwritten, on_progress=no_progress)
    assert len(list(unwritten.path.parent.glob("*.gguf*"))) == 1, "of the first, nothing of the second"


def test_a_full_disk_is_reported_before_writing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_files, "free_bytes", lambda folder: 2_000_000_000)
    target, _ = DemoSources().write(tmp_path)
    made = derive_target(model_in(target), inflation(1000, "q4_k_m"), "x")
    with pytest.raises(ResourceError) as full:
        write_derived(made, on_progress=no_progress)
    assert "model (q4_k_m) takes 2.8" in full.value.message and "2.00 GB are free" in full.value.message
    assert full.value.hint and list(cache.glob("*.gguf*")) == []


def test_what_the_quantizer_refuses_is_reported_with_its_reason(tmp_path: Path, cache: Path) -> None:
    target, _ = DemoSources().write(tmp_path)
    header = read_header(target)
    unknown = replace(header, metadata={**header.metadata, "general.architecture": "nonesuch"})
    made = derive_target(ModelInfo.from_header(header), Requantization("q8_0"), "x")
    assert made.plan is not None
    with pytest.raises(
        ResourceError, match=r"cannot quantize source-target@q8_0.*unknown model arch.*nonesuch"
    ) as refused:
        write_derived(replace(made, plan=replace(made.plan, source=unknown)), on_progress=no_progress)
    assert refused.value.hint and list(cache.glob("*.gguf*")) == []


class Interruption:
    """Presses Ctrl-C in the middle of writing, or when llama.cpp's quantizer has just begun."""

    def __init__(self, *, is_quantizing: bool) -> None:
        self.is_quantizing, self.last = is_quantizing, 0.0

    def __call__(self, fraction: float, what: str) -> None:
        assert "at the cost of a 20 M model" in what
        if fraction == self.last if self.is_quantizing else fraction > 0.5:
            raise KeyboardInterrupt
        self.last = fraction


@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_an_interrupted_write_leaves_nothing(tmp_path: Path, cache: Path, kind: str) -> None:
    target, _ = DemoSources().write(tmp_path)
    made = derive_target(model_in(target), inflation(20, kind), "x")
    with pytest.raises(KeyboardInterrupt):
        write_derived(made, on_progress=Interruption(is_quantizing=kind == "q8_0"))
    assert list(cache.glob("*.gguf*")) == []


# ---- what is on disk
def test_derived_models_are_listed_until_their_source_changes(tmp_path: Path) -> None:
    target, head = DemoSources().write(tmp_path)
    found = find_target(find(target, "100m"), on_progress=no_progress)
    draft = write_draft(find_draft(str(head), found), on_progress=no_progress)
    find_target(find(target, "drop2:q8_0"), on_progress=no_progress)
    entries = {entry.reference: entry for entry in list_derived()}
    assert list(entries) == [f"{target}@100m:bf16", f"{target}@drop2:q8_0"]
    inflated = entries[f"{target}@100m:bf16"]
    assert (inflated.origin, inflated.paths) == ("inflated", (found.path, draft.path))
    assert not any(entry.is_outdated for entry in entries.values())
    os.utime(target, (2**31, 2**31))
    assert all(entry.is_outdated for entry in list_derived())
    target.unlink()
    assert all(entry.is_outdated for entry in list_derived())
