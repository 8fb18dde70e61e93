"""Medusa heads of every dialect, imported and run by llama.cpp, give the logits of plain numpy on published weights.

The reference (doubles/medusa_checkpoints.py) knows no GGUF, and no place for a state in a wider row. Both get the
target's state after its output norm from llama.cpp.
"""

from __future__ import annotations

import contextlib
import ctypes as C
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.medusa_checkpoints import (
    LENT,
    MEDUSA_DIALECTS,
    ONE,
    OWN,
    TGI,
    VLLM,
    MedusaWeights,
    imported_medusa,
    random_medusa,
    reference_logits,
    write_medusa,
)
from doubles.random_models import TargetShape, write_target
from doubles.runnable_models import write_runnable

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaMedusaContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.top_tokens import MIN_RANKED
from eaglelocal.core.batch import Batch, Proposals
from eaglelocal.gguf.architectures import NORMED_NEXTN
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.loading.draft_loader import read_medusa_format

pytest.importorskip("torch")  # writes the pickle

SHAPE = TargetShape(n_embd=128, n_layer=3, n_ff=128)
PARAMS = ContextParams(n_ctx=256, n_batch=64, kv_type="f32", flash_attn="off")
TEXTS = [[int(token) for token in np.random.default_rng(seed).integers(0, 299, 9)] for seed in (3, 4)]
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


FORMS: dict[str, dict[str, object]] = {
    "an lm_head each": {},
    "the target's lm_head": {"outputs": LENT},
    "two layers": {"num_layers": 2},
    "two layers and the target's lm_head": {"num_layers": 2, "outputs": LENT},
    "no biases": {"biases": False},
    "one part": {"num_parts": 1},
    "five parts": {"num_parts": 5, "outputs": LENT},
}


@pytest.mark.parametrize("dialect", MEDUSA_DIALECTS)
@pytest.mark.parametrize("outputs", [OWN, ONE, LENT])
def test_every_dialect_gives_the_same_logits(dialect: str, outputs: str, target: Path, tmp_path: Path) -> None:
    check_same(random_medusa(outputs=outputs), dialect, target, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_logits(form: str, target: Path, tmp_path: Path) -> None:
    check_same(random_medusa(**FORMS[form]), TGI, target, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("outputs", [OWN, ONE])
def test_a_token_map_selects_tokens(is_whole: bool, outputs: str, target: Path, tmp_path: Path) -> None:
    """lm_heads may have rows for all tokens, of which the map selects some, or for those alone."""
    head = random_medusa(outputs=outputs, draft_vocab=40)
    if not is_whole:
        assert head.token_map is not None
        head = replace(head, outputs=tuple(output[head.token_map] for output in head.outputs))
    check_same(head, VLLM, target, tmp_path)


def test_the_comparison_can_fail(target: Path, tmp_path: Path) -> None:
    head = random_medusa()
    path = imported_medusa(write_medusa(tmp_path / "p", head, TGI), target, tmp_path / "head.gguf")
    ours, _, states = run(path, target)
    assert head.biases is not None
    theirs = reference_logits(replace(head, biases=-head.biases), states[0], target)
    for logits, others in zip(ours[0], theirs, strict=True):
        assert np.abs(scale_to(logits, others) - others).max() > 10 * TOLERANCE


def test_the_state_is_that_after_the_output_norm(target: Path, tmp_path: Path) -> None:
    """Its logits are the target's own, which the decode gave."""
    with opened(write_lent(tmp_path, target), target) as (context, _, _):
        n = len(TEXTS[0])
        context.decode(Batch(TEXTS[0], list(range(n)), [(0,)] * n, [True] * n))
        states = context.copy_taps(list(range(n)))[:, 0]
        output = read_tensor(read_header(target), "output.weight")
        for row in range(n):
            np.testing.assert_allclose(output @ states[row], context.logits(row), atol=TOLERANCE)


def test_decodes_with_rows_of_a_prompt_give_no_states(target: Path, tmp_path: Path) -> None:
    with opened(write_lent(tmp_path, target), target) as (context, _, _):
        n = len(TEXTS[0])
        outputs = context.decode(Batch(TEXTS[0], list(range(n)), [(0,)] * n, [False] * (n - 1) + [True]))
        assert outputs.features([n - 1]) is None
        outputs = context.decode(Batch([5], [n], [(0,)], [True]))
        assert outputs.features([0]) is not None


@pytest.mark.parametrize("name", sorted(NORMED_NEXTN))
def test_states_of_all_rows_are_those_of_rows_with_logits(name: str, tmp_path: Path) -> None:
    """Read as "nextn" states, or as embeddings. The first way gives them for rows of a prompt too."""
    model = LlamaModel(load_library(), write_runnable(tmp_path / "target.gguf", name), Placement(repack=False))
    n, tap, found = 9, model.n_layer + 1, []
    for by_nextn in (False, True):
        context = LlamaContext(model, PARAMS, taps=(tap,), normed_by_nextn=by_nextn)
        outputs = [not by_nextn] * (n - 1) + [True]
        decoded = context.decode(Batch(list(range(5, 5 + n)), list(range(n)), [(0,)] * n, outputs))
        features = decoded.features([3, n - 1])
        assert features is not None
        found.append(features.copied())
        context.close()
    model.close()
    assert np.abs(found[0]).max() > 0.1
    np.testing.assert_allclose(found[0], found[1], atol=TOLERANCE)


def check_same(head: MedusaWeights, dialect: str, target: Path, folder: Path) -> None:
    """The norm in the graph changes the scale of logits, and native code undoes it for the confidences."""
    path = imported_medusa(write_medusa(folder / "published", head, dialect), target, folder / "head.gguf")
    info = MedusaInfo.from_header(read_header(path))
    assert (info.num_parts, info.num_layers) == head.matrices.shape[:2]
    ours, proposals, states = run(path, target)
    for i, state in enumerate(states):
        for level, theirs in enumerate(reference_logits(head, state, target)):
            drafted = np.isfinite(theirs)
            assert np.array_equal(np.isfinite(ours[i, level]), drafted)
            assert theirs[drafted].std() > 0.3
            np.testing.assert_allclose(scale_to(ours[i, level], theirs)[drafted], theirs[drafted], atol=TOLERANCE)
            best = np.argsort(-theirs, kind="stable")[:MIN_RANKED]
            weights = np.exp(theirs[best] - theirs[best[0]])
            assert proposals.tokens[level * len(states) + i] == best[:2].tolist()
            shares = proposals.confidences[level * len(states) + i]
            np.testing.assert_allclose(shares, [weights[0] / weights.sum(), weights[1] / weights[1:].sum()], atol=1e-4)


def scale_to(logits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the logits [vocab], scaled so that they are as large as the others."""
    drafted = np.isfinite(others)
    return logits * np.float64(np.linalg.norm(others[drafted]) / np.linalg.norm(logits[drafted]))


def write_lent(folder: Path, target: Path) -> Path:
    published = write_medusa(folder / "lent", random_medusa(outputs=LENT), TGI)
    return imported_medusa(published, target, folder / "lent.gguf")


@contextlib.contextmanager
def opened(path: Path, target: Path) -> Iterator[tuple[LlamaContext, LlamaMedusaContext, MedusaInfo]]:
    """The target's context and the head's."""
    header = read_header(path)
    info = MedusaInfo.from_header(header)
    plain = Placement(repack=False)
    models = LlamaModel(load_library(), target, plain), LlamaModel(load_library(), path, plain)
    context = LlamaContext(models[0], PARAMS, taps=info.target_layers)
    head = LlamaMedusaContext(models[1], PARAMS, read_medusa_format(info), target=context)
    try:
        yield context, head, info
    finally:
        for closed in (head, context, models[1], models[0]):
            closed.close()


def decode_texts(context: LlamaContext) -> np.ndarray:
    """Decode both texts, one after the other, and return the states [texts, n_embd] of their last rows."""
    states = []
    for text in TEXTS:
        n = len(text)
        context.remove(0, 0)
        context.decode(Batch(text, list(range(n)), [(0,)] * n, [True] * n))
        states.append(context.copy_taps([n - 1])[0, 0])
    return np.stack(states)


def run(path: Path, target: Path) -> tuple[np.ndarray, Proposals, np.ndarray]:
    """Logits [texts, parts, vocab] of normed rows, the proposals, and the states [texts, n_embd] that gave them."""
    with opened(path, target) as (context, head, info):
        states = decode_texts(context)
        found = []
        for _ in range(2):  # the second time shows that the first left nothing behind
            proposals = head.propose(list(states), info.num_parts, 2)
            found.append([logits_of(head, row) for row in range(len(states) * info.num_parts)])
            assert [tokens[0] for tokens in proposals.tokens] == [int(row.argmax()) for row in found[-1]]
        np.testing.assert_array_equal(*found)
        return np.stack(found[0]).reshape(info.num_parts, len(states), -1).swapaxes(0, 1), proposals, states


def logits_of(head: LlamaMedusaContext, row: int) -> np.ndarray:
    address = load_library().get_logits_row(head.handle, row)
    return np.frombuffer((C.c_float * SHAPE.n_vocab).from_address(address), np.float32).copy()
