"""Exported files can be trained further: the same tokenizer, target and head, and a build that starts from them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from guide.build import (  # noqa: E402
    HEAD_FILE,
    TARGET_FILE,
    BuildOptions,
    build_tokenizer,
    claim_work_folder,
    make_embedded_head_shape,
)
from guide.gguf_export import export_head, export_target, round_to_bfloat16  # noqa: E402
from guide.gguf_reload import fill_target, read_tokenizer  # noqa: E402
from guide.llama_target import LlamaTarget, TargetShape  # noqa: E402
from guide.tokenizer import GuideTokenizer, train_tokenizer  # noqa: E402

from eaglelocal.errors import UsageError  # noqa: E402
from eaglelocal.gguf.reader import read_header  # noqa: E402
from eaglelocal.training.draft_head import fill_head  # noqa: E402
from eaglelocal.training.eagle_head import EagleHead  # noqa: E402

pytestmark = pytest.mark.full

TEXTS = ("What is 47 + 285? It's 332.\n", "Der Käse schmeckt süß.\n", "def add(a, b):\n    return a + b\n")
ODD = (*TEXTS, "", " \n\n ", "12 × 7", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b", "🙂 漢字", "it's WE'RE")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model under the names of the embedded one, norms that are not ones included."""
    folder = tmp_path_factory.mktemp("model")
    target, head = modules(tokenizer().num_tokens, seed=1)
    for module in (target, head):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.uniform_(0.5, 1.5) if parameter.ndim == 1 else parameter.normal_(std=0.1)
        round_to_bfloat16(module)
    export_target(target, tokenizer(), folder / TARGET_FILE, name="target")
    export_head(head, tokenizer(), folder / HEAD_FILE, name="head")
    torch.save((target.state_dict(), head.state_dict()), folder / "as it was")
    return folder


def tokenizer() -> GuideTokenizer:
    return train_tokenizer(TEXTS * 4, 400)


def modules(vocab: int, *, seed: int) -> tuple[LlamaTarget, EagleHead]:
    torch.manual_seed(seed)
    shape = TargetShape(vocab=vocab, width=64, num_layers=6, num_heads=1, num_kv_heads=1, ffn=96)
    return LlamaTarget(shape), EagleHead(make_embedded_head_shape(shape, num_heads=1, num_kv_heads=1, ffn=96))


@torch.no_grad()
def test_target_and_head_compute_what_they_did(folder: Path) -> None:
    vocab = tokenizer().num_tokens
    (target, head), (again, head_again) = modules(vocab, seed=2), modules(vocab, seed=3)
    for module, state in zip((target, head), torch.load(folder / "as it was"), strict=True):
        module.load_state_dict(state)
    fill_target(again, folder / TARGET_FILE)
    fill_head(head_again, read_header(folder / HEAD_FILE))
    tokens = torch.randint(0, vocab, (2, 24))
    (state, taps), (state_again, taps_again) = (t.forward_with_taps(tokens, (1, 3, 5)) for t in (target, again))
    assert torch.equal(state, state_again)
    anchors = torch.tensor([[5, 9], [0, 20]])
    embedded = target.embedding(tokens)
    chains = head(embedded, head.fuse(taps), anchors, 3)
    chains_again = head_again(embedded, head_again.fuse(taps_again), anchors, 3)
    for step, step_again in zip(chains, chains_again, strict=True):
        assert (step - step_again).abs().max() < 0.05 * step.std()  # fc's gains are folded in, and rounded with it


def test_the_tokenizer_splits_as_it_did(folder: Path) -> None:
    before, again = tokenizer(), read_tokenizer(folder / TARGET_FILE)
    assert again.num_tokens == before.num_tokens
    for text in ODD:
        assert again.encode(text) == before.encode(text)
        assert again.decode(again.encode(text)) == text


def test_a_build_that_goes_on_keeps_the_tokenizer_and_learns_more_gently(folder: Path, tmp_path: Path) -> None:
    from_nothing, going_on = (
        BuildOptions(tmp_path, tmp_path / "a", 1.0, 1),
        BuildOptions(tmp_path, tmp_path / "b", 1.0, 1, folder),
    )
    assert build_tokenizer(going_on).encode(TEXTS[0]) == tokenizer().encode(TEXTS[0])
    assert going_on.recipe.muon_lr < from_nothing.recipe.muon_lr
    claim_work_folder(going_on)
    with pytest.raises(UsageError, match="another start"):
        claim_work_folder(BuildOptions(tmp_path, tmp_path / "b", 1.0, 1))
