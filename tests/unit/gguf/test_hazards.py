"""Values with which llama.cpp would abort, crash or hang are refused; valid values next to them are accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from doubles.gguf_bytes import F32, STRING, TYPE_F16, TYPE_F32, U32, GgufBytes, TensorBytes

from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header

TYPE_Q8_1, TYPE_I32 = 9, 26
Change = Callable[[GgufBytes], object]


def described(folder: Path, architecture: str, *changes: Change) -> ModelInfo:
    """A model with heads of width 16."""
    built = GgufBytes().put("general.architecture", STRING, architecture)
    for key, value in {"embedding_length": 64, "context_length": 128, "block_count": 2}.items():
        built.put(f"{architecture}.{key}", U32, value)
    for change in changes:
        change(built)
    path = folder / "some.gguf"
    path.write_bytes(built.build())
    return ModelInfo.from_header(read_header(path))


def key(name: str, value: object, kind: int = U32) -> Change:
    return lambda built: built.put(name, kind, value)


def heads(architecture: str) -> Change:
    return key(f"{architecture}.attention.head_count", 4)


def tokens(*texts: str | bytes) -> Change:
    return lambda built: built.array("tokenizer.ggml.tokens", STRING, texts)


def tensor(name: str, kind: int, shape: tuple[int, ...]) -> Change:
    bytes_of = {TYPE_F32: 4, TYPE_F16: 2, TYPE_I32: 4, TYPE_Q8_1: 36 / 32}
    data = bytes(int(np.prod(shape) * bytes_of[kind]))
    return lambda built: built.tensors.append(TensorBytes(name, shape, data, kind))


def sentencepiece(*absent: int, spelled: str = "") -> Change:
    """A vocabulary that spells what it lacks byte by byte."""
    texts = [f"<0x{byte:02X}>" for byte in range(256) if byte not in absent]
    return lambda built: tokens("<unk>", *texts, *spelled)(built.put("tokenizer.ggml.model", STRING, "llama"))


def embedding(width: int) -> Change:
    """A model that answers with states, said to be so wide."""
    return lambda built: built.put_all(U32, bert__pooling_type=1, bert__embedding_length_out=width)


def misplaced(built: GgufBytes) -> None:
    """A file that says itself how its data is aligned, which is less than llama.cpp wants."""
    built.alignment = 8
    built.put("general.alignment", U32, 8).put("general.name", STRING, "12345")
    tensor("a.weight", TYPE_F32, (8, 2))(built)


EPSILON = "attention.layer_norm_rms_epsilon"
ENDING: list[tuple[str, Change, str]] = [
    ("gemma3", tokens("a", "b", "a"), r"tokens 0 and 2 are both b'a'"),
    ("gemma3", tokens("a", "a\0b"), "tokens 0 and 1 are both"),
    ("gemma3", tokens("", "[EMPTY_0]"), r"tokens 0 and 1 are both b'\[EMPTY_0\]'"),
    ("gemma3", sentencepiece(0x68), "no token stands for the byte 0x68"),
    ("gemma3", sentencepiece(0), "no token stands for the byte 0x00"),
    ("gemma3", sentencepiece(0xE2), "no token stands for the byte 0xE2"),
    ("gemma3", key(f"gemma3.{EPSILON}", -1e-5, F32), "epsilon is -"),
    ("gemma3", key(f"gemma3.{EPSILON}", float("nan"), F32), "epsilon is nan"),
    ("gemma3", key(f"gemma3.{EPSILON}", float("inf"), F32), "epsilon is inf"),
    ("gemma3", key("gemma3.rope.dimension_count", 0), "rope.dimension_count is 0, where heads are 16 wide"),
    ("gemma3", key("gemma3.rope.dimension_count", 7), "rope.dimension_count is 7"),
    ("gemma3", key("gemma3.rope.dimension_count", 18), "rope.dimension_count is 18"),
    ("gemma3", key("gemma3.rope.dimension_count_swa", 18), "rope.dimension_count_swa is 18"),
    ("qwen3", key("qwen3.rope.dimension_count", 8), "rope.dimension_count is 8"),
    ("glm5-next", key("glm5-next.rope.dimension_count", 8), "rope.dimension_count is 8"),
    ("gemma3", key("gemma3.rope.scaling.type", "yawn", STRING), "type is 'yawn', known are none, linear"),
    ("qwen3", key("qwen3.attention.value_length", 32), "keys are 16 wide and its values 32"),
    ("gemma3", key("gemma3.attention.head_count_kv", 2**28), "head_count_kv is 268435456, more heads of width 16"),
    ("gemma3", key("gemma3.expert_used_count", 2), "uses 2 of 0 experts"),
    ("gemma3", key("gemma3.expert_count", 8), "uses 0 of 8 experts"),
    ("gemma3", key("gemma3.expert_group_count", 1), "1 groups of 0 experts"),
    ("gemma3", tensor("a.weight", TYPE_I32, (32, 2)), "tensor a.weight is I32, a type that no weight can have"),
    ("gemma3", tensor("a.weight", TYPE_Q8_1, (32, 2)), "tensor a.weight is Q8_1"),
    ("gemma3", key("gemma3.attention.key_length", 0), "gemma3.attention.key_length is 0"),
    ("gemma3", key("gemma3.attention.value_length", 0), "gemma3.attention.value_length is 0"),
    ("deepseek4", key("deepseek4.hyper_connection.count", 2), "hyper_connection.count is 2, not 4"),
    ("deepseek4", key("deepseek4.hyper_connection.sinkhorn_iterations", 0), "sinkhorn_iterations is 0"),
    ("deepseek4", key("deepseek4.attention.output_group_count", 3), "heads form 3 groups"),
    ("deepseek4", key("deepseek4.attention.output_group_count", 0), "heads form 0 groups"),
    ("deepseek4", key("deepseek4.attention.value_length", 32), "keys are 16 wide and its values 32"),
    ("bert", embedding(65), "embedding_length_out is 65, where its states are 64 wide"),
    ("gemma3", misplaced, r"tensor a.weight begins at byte \d+, not a multiple of 32"),
    ("gemma3", tensor("a.bias", TYPE_F16, (32,)), "tensor a.bias is F16, expected F32"),
    ("gemma3", tensor("a_norm.weight", TYPE_F16, (32, 2)), "tensor a_norm.weight is F16"),
]
LAWFUL: list[tuple[str, Change]] = [
    ("gemma3", tokens("a", "b", "", "[EMPTY_3]", b"\xff", b"\xfe")),
    ("gemma3", sentencepiece(0x68, 0xC0, 0xFF, spelled="h")),
    ("gemma3", key(f"gemma3.{EPSILON}", 0.0, F32)),
    ("gemma3", key("gemma3.rope.dimension_count", 8)),
    ("qwen3", key("qwen3.rope.dimension_count", 16)),
    ("glm5-next", key("glm5-next.rope.dimension_count", 0)),
    ("gemma3", key("gemma3.rope.scaling.type", "yarn", STRING)),
    ("gemma3", key("gemma3.attention.value_length", 32)),
    ("hunyuan-dense", key("hunyuan-dense.expert_count", 1)),
    ("bert", embedding(64)),
    ("gemma3", key("gemma3.embedding_length_out", 65)),  # whose states are not read in that width
    ("deepseek4", key("deepseek4.embedding_length_out", 256)),
    ("deepseek4", key("deepseek4.hyper_connection.count", 4)),
    ("deepseek4", tensor("blk.0.ffn_gate_tid2eid.weight", TYPE_I32, (2, 5))),
    ("gemma3", tensor("a.weight", TYPE_F16, (32, 2))),
    ("gemma3", tensor("a_norm.weight", TYPE_F32, (32,))),
]


@pytest.mark.parametrize(("architecture", "change", "message"), ENDING)
def test_what_would_end_the_process_is_refused(tmp_path: Path, architecture: str, change: Change, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        described(tmp_path, architecture, heads(architecture), change)


@pytest.mark.parametrize(("architecture", "change"), LAWFUL)
def test_what_llama_runs_is_not(tmp_path: Path, architecture: str, change: Change) -> None:
    assert described(tmp_path, architecture, heads(architecture), change).n_layer == 2


@pytest.mark.parametrize(
    ("count", "used", "groups", "used_groups"),
    [(8, 9, 0, 0), (1025, 8, 0, 0), (8, 2, 8, 1), (8, 2, 3, 1), (8, 2, 4, 4)],
)
def test_experts_that_do_not_add_up_are_refused(
    tmp_path: Path, count: int, used: int, groups: int, used_groups: int
) -> None:
    figures = {"count": count, "used_count": used, "group_count": groups, "group_used_count": used_groups}
    changes = [key(f"qwen3moe.expert_{name}", value) for name, value in figures.items()]
    with pytest.raises(ModelFileError, match="experts"):
        described(tmp_path, "qwen3moe", *changes)


def test_experts_that_add_up_are_not(tmp_path: Path) -> None:
    figures = {"count": 256, "used_count": 8, "group_count": 8, "group_used_count": 4}
    changes = [key(f"deepseek2.expert_{name}", value) for name, value in figures.items()]
    assert described(tmp_path, "deepseek2", *changes).n_layer == 2
