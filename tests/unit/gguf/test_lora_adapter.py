"""What is said of files that are no LoRA adapter, or that of another model, before llama.cpp reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles.lora_files import write_lora
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError
from eaglelocal.gguf.lora_adapter import INVOCATION, check_adapter, read_adapter
from eaglelocal.gguf.reader import read_header

SMALL = TargetShape(n_embd=64, n_layer=2, n_ff=64)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("lora") / "target.gguf", SMALL)


def check(path: Path, target: Path) -> None:
    check_adapter(path.name, read_adapter(read_header(path)), read_header(target))


def test_an_adapter_of_the_target_fits(target: Path, tmp_path: Path) -> None:
    path = write_lora(tmp_path / "a.gguf", target, seed=0)
    check(path, target)
    adapter = read_adapter(read_header(path))
    assert (adapter.alpha, adapter.max_rank, len(adapter.pairs)) == (8.0, 4, 8)
    assert adapter.num_bytes == sum(tensor.nbytes for tensor in read_header(path).tensors.values())


def test_files_that_are_no_adapter(target: Path, tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.gguf", tmp_path / "text.gguf"
    text.write_text("no GGUF" * 100)
    head = write_head(tmp_path / "head.gguf", HeadShape(width=64), SMALL)
    for path, said in ((missing, "missing.gguf"), (text, "text.gguf"), (target, "no LoRA"), (head, "no LoRA")):
        with pytest.raises(EagleLocalError, match=said):
            check(path, target)


def test_malformed_adapters(target: Path, tmp_path: Path) -> None:
    cases = {
        "lacks blk.0.attn_q.weight.lora_b": {"left_out": "blk.0.attn_q.weight.lora_b"},
        "activated": {"edit": lambda writer: writer.add_array(INVOCATION, [1, 2])},
        "only lora": {"edit": lambda writer: writer.add_string("adapter.type", "dora")},
        "wrong type": {"edit": lambda writer: writer.add_string("adapter.lora.alpha", "8")},
        "not of a LoRA": {"edit": lambda writer: writer.add_tensor("output.weight", np.ones((2, 2), np.float32))},
    }
    for number, (said, changes) in enumerate(cases.items()):
        path = tmp_path / f"{number}.gguf"
        write_lora(path, target, seed=0, **changes)  # type: ignore[arg-type]
        with pytest.raises(ModelFileError, match=said):
            read_adapter(read_header(path))


def test_adapters_of_other_models(target: Path, tmp_path: Path) -> None:
    deeper = write_target(tmp_path / "deeper.gguf", TargetShape(n_embd=64, n_layer=3, n_ff=64))
    wider = write_target(tmp_path / "wider.gguf", TargetShape(n_embd=128, n_layer=2, n_ff=64))
    cases = {
        "architecture qwen3, the target is llama": write_lora(
            tmp_path / "q.gguf", target, seed=0, architecture="qwen3"
        ),
        "blk.2.*does not have": write_lora(tmp_path / "d.gguf", deeper, seed=0),
        "does not fit blk.0": write_lora(tmp_path / "w.gguf", wider, seed=0),
        "does not fit": write_lora(tmp_path / "c.gguf", target, seed=0, columns=32),
    }
    for said, path in cases.items():
        with pytest.raises(IncompatibleError, match=said):
            check(path, target)
