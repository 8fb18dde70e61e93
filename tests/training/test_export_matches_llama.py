"""Torch and llama.cpp agree on the exported files: tokenizer, target logits, layer inputs, g and every draft step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from guide.build import make_embedded_head_shape  # noqa: E402
from guide.gguf_export import MatrixType, export_head, export_target, round_to_bfloat16  # noqa: E402
from guide.llama_target import LlamaTarget, TargetShape  # noqa: E402
from guide.tokenizer import GuideTokenizer, train_tokenizer  # noqa: E402
from training.llama_chain import Norms, PinnedHead, PinnedTarget  # noqa: E402

from eaglelocal.training.eagle_head import EagleHead  # noqa: E402

pytestmark = pytest.mark.full

TEXTS = (
    "The quick brown fox, the lazy dog. Der Käse schmeckt süß; größere Häuser stehen am Fluß.\n",
    "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n    print(i * 123)\n",
    "What is 47 + 285? It's 332, we've computed it; they'll see. eaglelocal drafts ahead, and verifies.\n",
)
ODD_STRINGS = (
    "",
    " ",
    "Äpfel, Öl und Übermut: größer als 1 000,50 €?",
    "1234567890 12 3.14 0x1F -7+8=1",
    "def f(x):\n\treturn {'a': x[0]}  # ok\r\n\r\n",
    "emoji 🙂👩‍👩‍👧 and 漢字かな кириллица",
    "It's we'RE they'Ll I'M x'y'",
    "   leading, trailing   \n \n\n  ",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b <|endoftext|>",
    "e\u0301 combining, \u00a0nbsp, \u2028line, \u200bzero",
    "under_score__x--->>!!??...,;:",
)
PROMPT_LENGTH, NUM_STEPS = 40, 6


@dataclass(frozen=True)
class Pair:
    """A random target and head, in torch and as files."""

    tokenizer: GuideTokenizer
    target: LlamaTarget
    head: EagleHead
    target_file: Path
    head_file: Path
    tolerance: float  # on logits, relative to their standard deviation


@pytest.fixture(scope="module")
def tokenizer() -> GuideTokenizer:
    return train_tokenizer(TEXTS * 4, 600)


@pytest.fixture(
    scope="module", params=[(MatrixType.F32, 4, 1e-3), (MatrixType.F32, 2, 1e-3), (MatrixType.BF16, 4, 0.25)]
)
def pair(request: pytest.FixtureRequest, tokenizer: GuideTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    matrix_type, num_kv_heads, tolerance = request.param
    folder = tmp_path_factory.mktemp("pair")
    torch.manual_seed(7)
    shape = TargetShape(vocab=tokenizer.num_tokens, width=128, num_kv_heads=num_kv_heads, ffn=192)
    target, head = LlamaTarget(shape), EagleHead(make_embedded_head_shape(shape, num_kv_heads=num_kv_heads, ffn=160))
    for module in (target, head):
        _randomise(module)
        round_to_bfloat16(module)
    files = folder / "target.gguf", folder / "head.gguf"
    export_target(target, tokenizer, files[0], name="random target", matrix_type=matrix_type)
    export_head(head, tokenizer, files[1], name="random head", matrix_type=matrix_type)
    return Pair(tokenizer, target, head, *files, tolerance)


def _randomise(module: torch.nn.Module) -> None:
    """Weights as lively as trained ones: at the usual initial scale a wrong norm or residual would hardly show."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=1.5 * parameter.shape[1] ** -0.5)


@pytest.fixture
def llama_target(pair: Pair) -> Iterator[PinnedTarget]:
    target = PinnedTarget(pair.target_file)
    yield target
    target.close()


@pytest.fixture
def llama_head(pair: Pair, llama_target: PinnedTarget) -> Iterator[PinnedHead]:
    norms = Norms(pair.head.norm.weight.detach().numpy(), pair.target.shape.norm_eps)
    head = PinnedHead(pair.head_file, llama_target, norms)
    yield head
    head.close()


def _tokens(pair: Pair, count: int) -> list[int]:
    return np.random.default_rng(3).integers(3, pair.tokenizer.num_tokens, count).tolist()


def _assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> None:
    worst = np.abs(ours - theirs).max() / theirs.std()
    assert worst < tolerance, f"differs by {worst:.2g} standard deviations"


@torch.no_grad()
def test_the_targets_logits_agree(pair: Pair, llama_target: PinnedTarget) -> None:
    tokens = _tokens(pair, PROMPT_LENGTH)
    ours = pair.target.logits(pair.target(torch.tensor([tokens])))[0].numpy()
    _assert_close(ours, llama_target.decode(tokens), pair.tolerance)


@torch.no_grad()
def test_the_layer_inputs_and_g_agree(pair: Pair, llama_target: PinnedTarget, llama_head: PinnedHead) -> None:
    tokens = _tokens(pair, PROMPT_LENGTH)
    _, taps = pair.target.forward_with_taps(torch.tensor([tokens]), pair.head.shape.taps)
    theirs = llama_target.layer_inputs(tokens, pair.head.shape.taps)
    _assert_close(torch.stack(taps, 2)[0].numpy(), theirs, pair.tolerance)
    _assert_close(pair.head.fuse(taps)[0].numpy(), llama_head.encode(theirs), pair.tolerance)


@torch.no_grad()
def test_every_draft_step_agrees(pair: Pair, llama_target: PinnedTarget, llama_head: PinnedHead) -> None:
    tokens = _tokens(pair, PROMPT_LENGTH + NUM_STEPS)
    g = llama_head.encode(llama_target.layer_inputs(tokens, pair.head.shape.taps))
    anchor = PROMPT_LENGTH - 1
    llama_head.extend(tokens[1 : anchor + 1], g[:anchor], 0, want_output=False)
    theirs = llama_head.chain(tokens[anchor + 1 :], g[anchor], anchor)
    ours = _unrolled(pair, tokens, anchor)
    for step in range(NUM_STEPS):
        _assert_close(ours[step], theirs[step], pair.tolerance)


def _unrolled(pair: Pair, tokens: list[int], anchor: int) -> np.ndarray:
    """What training computes for the chain anchored there: [steps, vocab]."""
    row = torch.tensor([tokens])
    _, taps = pair.target.forward_with_taps(row, pair.head.shape.taps)
    embedded = pair.target.embedding(row)
    states = pair.head(embedded, pair.head.fuse(taps), torch.tensor([[anchor]]), NUM_STEPS)
    return torch.stack([pair.target.logits(state)[0, 0] for state in states]).numpy()


@pytest.mark.parametrize("text", ODD_STRINGS)
def test_llama_cpp_tokenizes_as_training_did(tokenizer: GuideTokenizer, vocabulary: PinnedTarget, text: str) -> None:
    assert vocabulary.tokenize(text) == tokenizer.encode(text)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: GuideTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PinnedTarget]:
    path = tmp_path_factory.mktemp("vocabulary") / "target.gguf"
    export_target(
        LlamaTarget(TargetShape(vocab=tokenizer.num_tokens, num_layers=1)), tokenizer, path, name="vocabulary"
    )
    target = PinnedTarget(path)
    yield target
    target.close()
