"""Documents become rows whose flags and scored positions say exactly what is learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from guide.document_packing import (
    ASSISTANT,
    IGNORED,
    PROMPT,
    PROMPT_SHARE,
    PackedDocument,
    encode_document,
    pack,
    score,
)
from guide.tokenizer import GuideTokenizer, train_tokenizer

pytestmark = pytest.mark.full

PIECES = [
    ("<|im_start|>user\n", False),
    ("What is 12 + 3?<|im_end|>\n", False),
    ("<|im_start|>assistant\n", False),
    ("It is 15.<|im_end|>", True),
    ("\n", False),
]


@pytest.fixture(scope="module")
def tokenizer() -> GuideTokenizer:
    return train_tokenizer(["What is 12 + 3? It is 15. user assistant and some more words"] * 3, 320)


def test_only_the_assistants_tokens_are_flagged_as_its_own(tokenizer: GuideTokenizer) -> None:
    document = encode_document(PIECES, tokenizer)
    answer = document.tokens[document.flags == ASSISTANT]
    assert tokenizer.decode(answer.tolist()) == "It is 15.<|im_end|>"
    assert answer[-1] == tokenizer.turn_end
    assert document.flags[0] == IGNORED
    assert (document.flags[1:] != IGNORED).all()


def test_prompts_are_encoded_as_one_text_up_to_the_answer(tokenizer: GuideTokenizer) -> None:
    document = encode_document(PIECES, tokenizer)
    prompt = "".join(text for text, _ in PIECES[:3])
    assert document.tokens.tolist()[: len(tokenizer.encode(prompt))] == tokenizer.encode(prompt)


@given(st.lists(st.integers(1, 40), max_size=60))
def test_packing_loses_and_cuts_no_document_that_fits(lengths: list[int]) -> None:
    documents = [_document(number, length) for number, length in enumerate(lengths, 1)]
    rows = list(pack(iter(documents), 32, filler=0))
    kept = [number for number, length in enumerate(lengths, 1) if length <= 32]
    for number in kept:
        homes = [row for row in rows if number in row.tokens]
        assert len(homes) == 1, f"document {number} is in {len(homes)} rows"
        at = np.flatnonzero(homes[0].tokens == number)
        assert len(at) == lengths[number - 1] == at[-1] - at[0] + 1
    assert all(len(row.tokens) == len(row.flags) == 32 for row in rows)
    assert {int(token) for row in rows for token in row.tokens} - {0} == set(kept)


def _document(number: int, length: int) -> PackedDocument:
    return PackedDocument(np.full(length, number, np.uint16), np.full(length, PROMPT, np.uint8))


def test_filler_is_never_scored() -> None:
    (row,) = pack(iter([_document(5, 10)]), 32, filler=0)
    assert (row.flags[10:] == IGNORED).all()


def test_every_answer_token_is_scored_and_a_tenth_of_the_prompts() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4096, (64, 512)).astype(np.uint16)
    flags = rng.choice(np.array([IGNORED, PROMPT, ASSISTANT], np.uint8), (64, 512))
    batch = score(tokens, flags, seed=1)
    scored_flags = flags.ravel()[batch.scored + 1]
    assert batch.is_assistant.sum() == (flags[:, 1:] == ASSISTANT).sum()
    assert (scored_flags != IGNORED).all()
    share = (scored_flags == PROMPT).sum() / (flags[:, 1:] == PROMPT).sum()
    assert abs(share - PROMPT_SHARE) < 0.02


def test_labels_are_the_tokens_that_follow_in_the_same_row() -> None:
    tokens = np.arange(24, dtype=np.uint16).reshape(3, 8)
    batch = score(tokens, np.full((3, 8), ASSISTANT, np.uint8), seed=0)
    assert (batch.labels == batch.scored + 1).all()
    assert len(batch.labels) == 3 * 7
    assert not ((batch.scored + 1) % 8 == 0).any()


def test_the_same_seed_scores_the_same_prompts_and_another_other_ones() -> None:
    tokens, flags = np.zeros((4, 256), np.uint16), np.full((4, 256), PROMPT, np.uint8)
    assert (score(tokens, flags, seed=3).scored == score(tokens, flags, seed=3).scored).all()
    assert score(tokens, flags, seed=3).scored.tolist() != score(tokens, flags, seed=4).scored.tolist()
