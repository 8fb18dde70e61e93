"""The typed views of targets and heads, and the refusal of pairs that llama.cpp would abort on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from doubles.demo_sources import DemoSources
from doubles.gguf_bytes import BOOL, F32, STRING, U32, GgufBytes
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.architectures import (
    EQUAL_WIDTH_ARCHITECTURES,
    FINAL_STATE,
    HYBRID_ARCHITECTURES,
    KNOWN_ARCHITECTURES,
    LAYER_INPUT_ARCHITECTURES,
    MTP_ARCHITECTURES,
    NO_TENSOR_SPLIT,
    RECURRENT_ARCHITECTURES,
    UNUSED_MTP,
    WHOLE_ROPE_ARCHITECTURES,
    FinalState,
    check_known,
)
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import find_block


def model_of(path: Path) -> ModelInfo:
    return ModelInfo.from_header(read_header(path))


def head_of(path: Path) -> EagleInfo:
    return EagleInfo.from_header(read_header(path))


def pair(folder: Path) -> tuple[EagleInfo, ModelInfo]:
    target, head = DemoSources(layers=4).write(folder)
    return head_of(head), model_of(target)


def test_a_target_is_described(tmp_path: Path) -> None:
    target, _ = DemoSources(layers=4).write(tmp_path)
    info = model_of(target)
    assert (info.architecture, info.name, info.n_layer, info.n_embd) == ("llama", "test guide", 4, 256)
    assert (info.n_head, info.n_kv_head, info.n_ff, info.head_dim) == ((4,) * 4, (2,) * 4, (704,) * 4, 64)
    assert (info.n_vocab, info.context_length) == (320, 512)
    assert info.chat_template == "{{ messages[0].content }}"
    assert info.gives_layer_inputs and info.final_state is None and not info.has_state
    assert info.weights_bytes == sum(tensor.nbytes for tensor in read_header(target).tensors.values())


def described(folder: Path, architecture: str, change: Callable[[GgufBytes], object] = lambda _: None) -> ModelInfo:
    built = GgufBytes().put("general.architecture", STRING, architecture)
    for key, value in {"embedding_length": 64, "context_length": 128, "block_count": 4}.items():
        built.put(f"{architecture}.{key}", U32, value)
    change(built)
    path = folder / "some.gguf"
    path.write_bytes(built.build())
    return model_of(path)


def test_values_per_layer_and_layers_that_predict_ahead(tmp_path: Path) -> None:
    def change(built: GgufBytes) -> None:
        built.put("qwen3next.nextn_predict_layers", U32, 1).put("qwen3next.attention.sliding_window", U32, 1024)
        built.array("qwen3next.attention.head_count", U32, [8, 0, 8, 8]).put("qwen3next.attention.key_length", U32, 32)
        built.array("qwen3next.attention.head_count_kv", U32, [2, 0, 2, 2])

    info = described(tmp_path, "qwen3next", change)
    assert (info.n_layer, info.n_head, info.n_kv_head) == (3, (8, 0, 8), (2, 0, 2))
    assert (info.sliding_window, info.head_dim, info.name) == (1024, 32, "some")
    assert info.is_hybrid and info.has_state and not info.is_recurrent


def test_recurrent_models_are_recognized_by_name_and_by_key(tmp_path: Path) -> None:
    assert described(tmp_path, "mamba", lambda b: b.put("mamba.ssm.state_size", U32, 16)).is_recurrent
    unlisted = "maple"
    assert described(tmp_path, unlisted, lambda b: b.put("maple.ssm.state_size", U32, 16)).is_hybrid
    assert described(tmp_path, unlisted, lambda b: b.put("maple.shortconv.l_cache", U32, 3)).is_hybrid
    assert not described(tmp_path, "qwen3").has_state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.put("qwen3.nextn_predict_layers", U32, 4), "claims 4 layers"),
        (lambda b: b.put("qwen3.attention.head_count", STRING, "8"), "not a count"),
        (lambda b: b.put("qwen3.attention.head_count", U32, 2**32 - 1), "not a count"),
        (lambda b: b.array("qwen3.attention.head_count", U32, [8, 8]), "2 entries for 4 layers"),
        (lambda b: b.array("qwen3.attention.head_count", U32, [8] * 513), "513 entries"),
        (lambda b: b.put("tokenizer.chat_template", U32, 1), "not text"),
    ],
)
def test_keys_that_make_no_sense_are_refused(
    tmp_path: Path, change: Callable[[GgufBytes], object], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        described(tmp_path, "qwen3", change)


def test_a_file_without_architecture_or_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(GgufBytes().build())
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        model_of(path)
    path.write_bytes(GgufBytes().put("general.architecture", STRING, "llama").build())
    with pytest.raises(ModelFileError, match=r"lacks the key llama\.block_count"):
        model_of(path)


def test_a_head_is_described(tmp_path: Path) -> None:
    head, _ = pair(tmp_path)
    assert (head.target_layers, head.target_hidden_size, head.width, head.n_vocab) == ((1, 2, 3), 256, 256, 320)
    assert (head.fc_norm, head.norm_output, head.norm_before_fc, head.norm_before_residual) == (
        True,
        True,
        False,
        False,
    )
    assert (head.draft_vocab, head.d2t_range, head.has_own_embeddings, head.has_own_output) == (
        None,
        None,
        False,
        False,
    )
    assert head.rms_eps == head.fc_norm_eps == pytest.approx(1e-3)


def test_an_eps_of_its_own_for_the_taps_is_read(tmp_path: Path) -> None:
    sources = DemoSources(layers=4)
    built = sources._head(np.random.default_rng(0)).put("eaglelocal.fc_norm_eps", F32, 0.25)
    path = tmp_path / "head.gguf"
    path.write_bytes(built.build())
    assert (head_of(path).fc_norm_eps, head_of(path).rms_eps) == (0.25, pytest.approx(1e-3))


DIALECTS = [
    HeadShape(),
    HeadShape(draft_vocab=100, own_output=True),
    HeadShape(width=192, own_output=True, own_embeddings=True),
    HeadShape(norm_before_fc=True, norm_before_residual=True),
    HeadShape(fc_norm=True, norm_output=True),
]


@pytest.mark.parametrize("shape", DIALECTS)
def test_every_dialect_fits(tmp_path: Path, shape: HeadShape) -> None:
    head, target = write_head(tmp_path / "head.gguf", shape), write_target(tmp_path / "target.gguf")
    check_head(head_of(head), model_of(target))
    assert head_of(head).draft_vocab == shape.draft_vocab


def test_a_target_is_no_head(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a llama model, not an eagle3 head"):
        head_of(write_target(tmp_path / "target.gguf"))


WRONG_HEADS = {
    "hidden size": (HeadShape(), TargetShape(n_embd=192), "made for hidden size 192, the target has 128"),
    "vocabulary": (HeadShape(), TargetShape(n_vocab=310), "vocabulary has 310 tokens, the target's 300"),
    "layer beyond": (HeadShape(taps=(1, 2, 5)), TargetShape(), "taps layer 5, the target has layers 0 to 3"),
    "negative layer": (HeadShape(taps=(-1, 2, 3)), TargetShape(), "taps layer -1"),
    "final state": (
        HeadShape(taps=(1, 2, 4)),
        TargetShape(),
        "the final state, which llama.cpp does not give for llama",
    ),
    "four taps as llama.cpp reads them": (HeadShape(taps=(0, 1, 2, 3)), TargetShape(), "taps 4 layers without"),
    "narrow without output": (HeadShape(width=64), TargetShape(), "borrows embeddings and output of width 128"),
    "map without output": (
        HeadShape(draft_vocab=100),
        TargetShape(),
        "drafts over 100 tokens with the target's output",
    ),
}


@pytest.mark.parametrize("case", WRONG_HEADS)
def test_heads_for_other_targets_are_refused(tmp_path: Path, case: str) -> None:
    shape, made_for, message = WRONG_HEADS[case]
    head = head_of(write_head(tmp_path / "head.gguf", shape, made_for))
    target = model_of(write_target(tmp_path / "target.gguf"))
    with pytest.raises(IncompatibleError) as caught:
        check_head(head, target)
    assert message in caught.value.message
    assert caught.value.hint


CHANGED_HEADS: dict[str, tuple[Callable[[EagleInfo], EagleInfo], str]] = {
    "two layers": (lambda head: replace(head, n_layer=2), "has 2 layers"),
    "heads do not divide": (lambda head: replace(head, n_kv_head=3), "4 heads do not divide among 3"),
    "no heads": (lambda head: replace(head, n_kv_head=0), "do not divide among 0"),
    "values of another width": (lambda head: replace(head, value_dim=32), "keys are 64 wide and its values 32"),
    "fewer feed-forward channels": (
        lambda head: replace(head, n_ff=512),
        "ffn_gate.weight is (256, 704), expected (256, 512)",
    ),
    "tensor missing": (lambda head: without(head, "fc.weight"), "lacks the tensor fc.weight (768, 256)"),
    "tensor unknown": (lambda head: renamed(head, "output_norm.weight", "fc_norm.0.weight"), "output_norm.weight"),
    "norm of another shape": (
        lambda head: replace(head, norm_before_fc=True),
        "lacks the tensor enc.output_norm.weight",
    ),
    "map out of range": (lambda head: replace(head, d2t_range=(0, 320)), "d2t names tokens 0 to 320 of 320"),
}


def with_tensors(head: EagleInfo, tensors: Mapping[str, TensorInfo]) -> EagleInfo:
    return replace(head, header=replace(head.header, tensors=tensors))


def without(head: EagleInfo, name: str) -> EagleInfo:
    return with_tensors(head, {key: info for key, info in head.tensors.items() if key != name})


def renamed(head: EagleInfo, name: str, other: str) -> EagleInfo:
    return with_tensors(head, {other if key == name else key: info for key, info in head.tensors.items()})


@pytest.mark.parametrize("case", CHANGED_HEADS)
def test_heads_that_llama_cpp_would_not_load_are_refused(tmp_path: Path, case: str) -> None:
    head, target = pair(tmp_path)
    check_head(head, target)
    change, message = CHANGED_HEADS[case]
    with pytest.raises(IncompatibleError) as caught:
        check_head(change(head), target)
    assert message in caught.value.message


def test_tensors_that_llama_cpp_does_not_know_are_named(tmp_path: Path) -> None:
    head, target = pair(tmp_path)
    extra = {**head.tensors, "fc_norm.0.weight": head.tensors["output_norm.weight"]}
    with pytest.raises(IncompatibleError, match=r"fc_norm\.0\.weight, which llama\.cpp does not know"):
        check_head(with_tensors(head, extra), target)


def test_targets_without_layer_inputs_are_refused(tmp_path: Path) -> None:
    head, target = pair(tmp_path)
    with pytest.raises(IncompatibleError, match="no layer inputs for the architecture qwen2"):
        check_head(head, replace(target, architecture="qwen2"))


def test_the_final_state_is_allowed_where_it_can_be_had(tmp_path: Path) -> None:
    head, target = pair(tmp_path)
    check_head(replace(head, target_layers=(1, 2, 4)), replace(target, architecture="gpt-oss"))


def test_lists_hang_together() -> None:
    assert set(FINAL_STATE) <= LAYER_INPUT_ARCHITECTURES
    assert FINAL_STATE["gpt-oss"] is FinalState.NEXTN
    assert not {"qwen2", "gemma3", "phi3", "mistral3", "qwen4exp"} & LAYER_INPUT_ARCHITECTURES


@pytest.mark.parametrize(
    ("architecture", "hint"),
    [
        ("glm5next", "a file whose architecture is glm5-next: the same model, made for a released llama.cpp"),
        ("hyv4", "a file whose architecture is hy_v4: "),
        ("Qwen4_Exp", "a file whose architecture is qwen4exp: "),
        ("deepseek41", "a release of eaglelocal with a llama.cpp that has it"),
    ],
)
def test_an_architecture_that_llama_cpp_lacks_is_refused_with_what_is_needed(
    tmp_path: Path, architecture: str, hint: str
) -> None:
    with pytest.raises(ModelFileError) as refused:
        described(tmp_path, architecture)
    assert refused.value.message == f"some.gguf: llama.cpp here has no graph for the architecture {architecture}"
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize("architecture", ["qwen4exp", "glm5-next", "hy_v4", "bailingmoe3", "deepseek4"])
def test_architectures_of_this_season_are_known(architecture: str) -> None:
    check_known(architecture, "some.gguf")


def test_llama_cpp_has_every_architecture_that_is_listed_as_known() -> None:
    """The linker may store a name as the end of a longer one, so only what follows a name is sure."""
    package = Path(str(find_spec("llama_cpp").submodule_search_locations[0]))  # type: ignore[union-attr,index]
    library = next((package / "lib").glob("libllama.*")).read_bytes()
    assert [name for name in sorted(KNOWN_ARCHITECTURES) if f"{name}\0".encode() not in library] == []
    assert b"glm5next\0" not in library


def test_what_is_listed_elsewhere_is_known() -> None:
    for listed in (
        *(LAYER_INPUT_ARCHITECTURES, NO_TENSOR_SPLIT, HYBRID_ARCHITECTURES, RECURRENT_ARCHITECTURES),
        *(MTP_ARCHITECTURES, WHOLE_ROPE_ARCHITECTURES, EQUAL_WIDTH_ARCHITECTURES, frozenset(UNUSED_MTP)),
    ):
        assert listed <= KNOWN_ARCHITECTURES


def test_flags_of_another_kind_are_refused(tmp_path: Path) -> None:
    built = DemoSources(layers=4)._head(np.random.default_rng(0))
    path = tmp_path / "head.gguf"
    path.write_bytes(built.put("eagle3.norm_before_fc", U32, 1).build())
    with pytest.raises(ModelFileError, match="not a bool"):
        head_of(path)
    path.write_bytes(
        DemoSources(layers=4)._head(np.random.default_rng(0)).put("eagle3.norm_before_fc", BOOL, 0).build()
    )
    assert not head_of(path).norm_before_fc


@pytest.mark.parametrize(
    ("name", "block"), [("blk.7.ffn_up.weight", 7), (f"blk.{'9' * 5000}.x", None), ("blk.²3.x", None)]
)
def test_only_a_plain_number_names_a_block(name: str, block: int | None) -> None:
    assert find_block(name) == block
