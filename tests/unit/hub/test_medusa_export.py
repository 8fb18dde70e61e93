"""A Medusa head goes out as it came in: in vLLM's form, with its own lm_heads or its target's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from doubles.commands import run_command
from doubles.medusa_checkpoints import LENT, ONE, OWN, VLLM, imported_medusa, random_medusa, write_medusa
from doubles.random_models import TargetShape, write_target

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.heads.export_medusa import make_medusa_export
from eaglelocal.hub.heads.head_folder import read_published

SHAPE = TargetShape(n_embd=128, n_layer=6, n_ff=128)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


@pytest.mark.parametrize("outputs", [OWN, ONE, LENT])
@pytest.mark.parametrize(("num_layers", "biases", "draft_vocab"), [(1, True, None), (2, False, None), (2, True, 40)])
def test_a_head_comes_back_bit_for_bit(
    outputs: str, num_layers: int, biases: bool, draft_vocab: int | None, target: Path, tmp_path: Path
) -> None:
    if outputs == LENT and draft_vocab:
        pytest.skip("there are no rows that the tokens could name")
    head = random_medusa(
        width=SHAPE.n_embd, num_layers=num_layers, outputs=outputs, biases=biases, draft_vocab=draft_vocab
    )
    path = imported_medusa(write_medusa(tmp_path / "published", head, VLLM), target, tmp_path / "head.gguf")
    done = run_command("export", str(path), str(target), "--out", str(tmp_path / "out"), "--type", "f32")
    assert done.returncode == 0, done.stderr
    ours, theirs = (read_published(tmp_path / name) for name in ("out", "published"))
    lent = {"lm_head.weight"} if outputs == LENT else set()
    assert ours.tensors.keys() == theirs.tensors.keys() | lent
    for name, tensor in theirs.tensors.items():
        if name == "token_map":
            assert np.array_equal(ours.tensors[name].integers(), tensor.integers())
            continue
        found, wanted = ours.tensors[name].floats(), tensor.floats()
        if draft_vocab and "lm_head" in name:
            wanted = wanted[head.token_map]
        assert np.array_equal(found, wanted), name
    if lent:
        own = read_tensor(read_header(target), "output.weight")
        assert np.array_equal(ours.tensors["lm_head.weight"].floats(), own)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    stated = json.loads((tmp_path / "published" / "config.json").read_text())
    same = ("model_type", "num_heads", "num_hidden_layers", "hidden_size", "medusa_fc_bias")
    assert {key: config[key] for key in same} == {key: stated[key] for key in same}
    assert config["truncated_vocab_size"] == (draft_vocab or SHAPE.n_vocab)
    assert config["original_lm_head"] is (outputs != OWN)
    again = read_header(imported_medusa(tmp_path / "out", target, tmp_path / "again.gguf")).tensors
    assert {name: one.shape for name, one in again.items()} == {
        n: one.shape for n, one in read_header(path).tensors.items()
    }


def test_a_borrowed_output_needs_its_target(target: Path, tmp_path: Path) -> None:
    head = random_medusa(width=SHAPE.n_embd, outputs=LENT)
    path = imported_medusa(write_medusa(tmp_path / "published", head, VLLM), target, tmp_path / "head.gguf")
    info = MedusaInfo.from_header(read_header(path))
    with pytest.raises(IncompatibleError, match="its target lends its own"):
        make_medusa_export(info, "keep", None)
    other = write_target(tmp_path / "other.gguf", TargetShape(n_embd=64))
    with pytest.raises(IncompatibleError, match=r"reads an lm_head of 300 rows of 128, other\.gguf has 300 of 64"):
        make_medusa_export(info, "keep", read_header(other))
    refused = run_command("export", str(path), "--out", str(tmp_path / "out"), "--format", "specforge")
    assert refused.returncode == 2 and "a form of its own" in refused.stderr
    assert not (tmp_path / "out").exists()
