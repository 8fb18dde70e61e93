"""A Medusa head in torch drafts what llama.cpp drafts from the file that it writes, with the same confidences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles.random_models import TargetShape, write_target
from doubles.runnable_models import write_runnable

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaMedusaContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.top_tokens import MIN_RANKED
from eaglelocal.core.batch import Batch
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.loading.draft_loader import read_medusa_format

torch = pytest.importorskip("torch")

from eaglelocal.training.draft_head import HeadSource, choose_vocabulary, make_draft_head  # noqa: E402
from eaglelocal.training.eagle_head import MedusaParts, gather_rows  # noqa: E402
from eaglelocal.training.head_file import make_head_entries, make_head_tensors  # noqa: E402

pytestmark = pytest.mark.full

PARAMS = ContextParams(n_ctx=128, n_batch=64, kv_type="f32", flash_attn="off")
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 299, 30)]
NUM_PARTS = 3


def source_of(target: Path) -> HeadSource:
    header = read_header(target)
    return HeadSource(ModelInfo.from_header(header), num_depths=NUM_PARTS, is_medusa=True)


@pytest.mark.parametrize("num_tokens", [None, 120])
def test_torch_and_llama_cpp_draft_the_same(num_tokens: int | None, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", TargetShape(n_embd=64, n_ff=64))
    source, rng = source_of(target), np.random.default_rng(5)
    tokens = None if num_tokens is None else np.sort(rng.permutation(300)[:num_tokens]).astype(np.int64)
    vocabulary = choose_vocabulary(source, tokens)
    draft_head = make_draft_head(source, vocabulary, max_context=64)
    parts = draft_head.head
    assert isinstance(parts, MedusaParts)
    torch.manual_seed(1)
    for parameter in parts.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    path = tmp_path / "head.gguf"
    entries = make_head_entries(parts, source, name="head", kind="f32")
    with write_head_file(path, entries, make_head_tensors(draft_head, vocabulary, "f32"), on_progress=lambda _: None):
        pass
    states, proposed = propose(target, path)
    found = parts(torch.empty(0), parts.fuse([torch.from_numpy(states)[None]]), torch.tensor([[len(TEXT) - 1]]), 3)
    output = draft_head.output.float()
    for (drafted, shares), state in zip(proposed, found, strict=True):
        logits, best = torch.topk(state[0, 0] @ output.T, MIN_RANKED)
        ids = best.tolist() if tokens is None else tokens[best.numpy()].tolist()
        assert drafted == ids[0]
        np.testing.assert_allclose(shares, torch.softmax(logits, -1)[0].item(), atol=1e-2)  # lent outputs are bfloat16


def propose(target: Path, path: Path) -> tuple[np.ndarray, list[tuple[int, float]]]:
    """Return the states [rows, width] of TEXT, and each part's token and confidence after its last row."""
    header = read_header(path)
    info = MedusaInfo.from_header(header)
    models = [LlamaModel(load_library(), file, Placement(repack=False)) for file in (target, path)]
    context = LlamaContext(models[0], PARAMS, taps=info.target_layers)
    head = LlamaMedusaContext(models[1], PARAMS, read_medusa_format(info), target=context)
    n = len(TEXT)
    context.decode(Batch(TEXT, list(range(n)), [(0,)] * n, [True] * n))
    states = context.copy_taps(list(range(n)))[:, 0]
    proposals = head.propose([states[-1]], NUM_PARTS, 1)
    for closed in (head, context, *reversed(models)):
        closed.close()
    return states, [(t[0], c[0]) for t, c in zip(proposals.tokens, proposals.confidences, strict=True)]


def test_all_steps_of_a_chain_read_the_state_at_its_anchor(tmp_path: Path) -> None:
    source = source_of(write_target(tmp_path / "target.gguf", TargetShape(n_embd=64, n_ff=64)))
    parts = make_draft_head(source, choose_vocabulary(source, None), max_context=64).head
    g, anchors = torch.randn(2, 9, 64), torch.tensor([[1, 5, 7], [0, 2, 3]])
    found = parts(torch.empty(0), g, anchors, NUM_PARTS, 0.7)
    assert [state.shape[1] for state in found] == [3, 3, 2]  # fewer chains have the later steps
    for state in found:  # layers of zeros change nothing
        torch.testing.assert_close(state, gather_rows(g, anchors)[:, : state.shape[1]])


def test_a_target_that_does_not_give_its_states_is_refused_at_once(tmp_path: Path) -> None:
    source = source_of(write_runnable(tmp_path / "target.gguf", "lfm2"))
    with pytest.raises(IncompatibleError, match="the states that a Medusa head reads"):
        make_draft_head(source, choose_vocabulary(source, None), max_context=64)
