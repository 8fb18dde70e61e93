"""The package speculators reads exported heads, and computes with them what our own graph computes.

It is not installed with us: SPECULATORS_PYTHON names an interpreter that has it (`pip install speculators==0.9.0`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from doubles import speculators_reader
from doubles.eagle_checkpoints import Kind, random_checkpoint, write_checkpoint
from doubles.exported_heads import exported
from doubles.imported_heads import imported
from doubles.p_eagle_checkpoints import random_parallel_head, write_parallel_head
from doubles.random_models import TargetShape, write_target

from eaglelocal.hub.heads.export_tensors import SPECULATORS

torch = pytest.importorskip("torch")

from doubles.eagle_files import head_source  # noqa: E402

from eaglelocal.training.draft_head import choose_vocabulary, make_draft_head  # noqa: E402

LENGTH, WIDTH, NUM_STEPS = 24, 128, speculators_reader.NUM_STEPS
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS = {
    "EAGLE-3": Kind(),
    "EAGLE-3.1": Kind(fc_norm=True, norm_output=True, norm_before_residual=True),
    "norm before fc": Kind(norm_before_fc=True, norm_output=True),
    "all tokens": Kind(draft_vocab=None),
    "llama3": Kind(rope_scaling={**LLAMA3, "original_max_position_embeddings": 8192}),
}
READER = os.environ.get("SPECULATORS_PYTHON", sys.executable)

pytestmark = pytest.mark.slow


@cache
def has_package() -> bool:
    command = [READER, "-c", "import speculators"]
    return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0


@pytest.fixture(autouse=True)
def needs_package() -> None:
    if not has_package():
        pytest.skip(f"{READER} has no package speculators; SPECULATORS_PYTHON names an interpreter that has it")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TargetShape(n_embd=WIDTH, n_layer=6, n_ff=128)
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", shape)


def read_with_package(folder: Path, arrays: Path | None = None) -> dict[str, list[str]]:
    command = [READER, speculators_reader.__file__, str(folder), *([str(arrays)] if arrays else [])]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_drafts_as_we_do(kind: str, target: Path, tmp_path: Path) -> None:
    published = write_checkpoint(tmp_path / "published", random_checkpoint(KINDS[kind]), "SpecForge")
    path = imported(published, target, tmp_path / "head.gguf")
    source = head_source(target, path)
    vocabulary = choose_vocabulary(source, None)
    draft_head = make_draft_head(source, vocabulary, max_context=64)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, source.target.n_vocab, LENGTH)
    taps = rng.normal(size=(LENGTH, 3 * WIDTH)).astype(np.float32)
    everything = vocabulary.read_embeddings(range(source.target.n_vocab))
    arrays = tmp_path / "arrays.npz"
    np.savez(arrays, tokens=tokens, taps=taps, embeddings=everything)

    anchors = torch.arange(LENGTH - 1 - NUM_STEPS)[None]
    with torch.no_grad():
        g = draft_head.head.fuse([torch.from_numpy(part)[None] for part in np.split(taps, 3, 1)])
        states = draft_head.head(torch.from_numpy(everything[tokens])[None], g, anchors, NUM_STEPS)
        ours = np.stack([(state[0] @ draft_head.output.float().T).numpy() for state in states])
    loading = read_with_package(exported(path, tmp_path / "out", SPECULATORS), arrays)
    assert not any(loading.values()), loading
    theirs = np.load(arrays)["logits"][:, : ours.shape[1]]
    assert ours.shape == theirs.shape and float(ours.std()) > 0.3
    np.testing.assert_allclose(theirs, ours, atol=1e-3)


def test_the_package_reads_p_eagle_heads(target: Path, tmp_path: Path) -> None:
    head = random_parallel_head(Kind(num_layers=2))
    path = imported(write_parallel_head(tmp_path / "published", head, SPECULATORS), target, tmp_path / "head.gguf")
    loading = read_with_package(exported(path, tmp_path / "out", SPECULATORS))
    assert not any(loading.values()), loading
