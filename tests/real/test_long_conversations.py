"""Long prompts of real models, prefixes that are reused, and conversations that leave a small cache and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.engine_harness import AnswerResult, drive
from doubles.margin import find_bound, margin_differences
from doubles.real_engine import ask, real_engine
from doubles.real_prompts import HELD_OUT, PASSAGE, read_text, render
from doubles.tiers import some_of

from eaglelocal.bench.bench_prompts import read_prompts
from eaglelocal.core.request import Message
from eaglelocal.engine.engine import Engine
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header

pytestmark = [pytest.mark.full, pytest.mark.real]

NEEDLE = "The code word of the lighthouse is marmalade. "
WINDOW = 512  # of Gemma's layers


def read_long(num_repeats: int) -> str:
    """Return a text of several hundred different sentences."""
    stories = [prompt.messages[-1].content for prompt in read_prompts(HELD_OUT)]
    return NEEDLE + PASSAGE + " ".join(stories[:num_repeats])


def answer(engine: Engine, name: str, prompt: tuple[int, ...], max_tokens: int = 16) -> AnswerResult:
    result = drive(engine, [ask(name, prompt, max_tokens=max_tokens)])[name]
    assert result.failed is None and result.started is not None
    assert engine.miscounted_slots() == []
    return result


# ---- long prompts
@pytest.mark.parametrize("n_batch", some_of([512, 128], rest=pytest.mark.slow))
def test_a_long_prompt_is_read_whole_in_parts(smollm2: Path, n_batch: int) -> None:
    """The text after it is the same however it was divided, and knows what stood at its beginning."""
    texts = []
    for rows in (n_batch, 384):
        engine = real_engine(smollm2, "ngram", n_ctx=2048, n_batch=rows)
        question = f"{read_long(45)}\n\nWhat is the code word of the lighthouse?"
        prompt = render(engine, (Message("user", question),))
        assert 2 * 384 < len(prompt) < 2000
        texts.append(answer(engine, "long", prompt, 24))
        engine.close()
    plain = real_engine(smollm2, n_ctx=2048, n_batch=256)
    for text in texts:
        assert "marmalade" in text.text.lower()
        margin_differences(plain, ask("long", prompt, max_tokens=24), text.tokens, find_bound(smollm2))
    plain.close()


@pytest.mark.parametrize("is_whole", some_of([False, True], rest=pytest.mark.slow))
def test_a_prompt_longer_than_the_window(gemma: Path, is_whole: bool) -> None:
    engine = real_engine(gemma, "ngram", n_ctx=2048, n_batch=256, swa_full=is_whole)
    prompt = read_text(engine, f"{read_long(35)} {PASSAGE}")
    assert len(prompt) > WINDOW + 256
    result = answer(engine, "long", prompt, 24)
    engine.close()
    plain = real_engine(gemma, n_ctx=2048, n_batch=512, swa_full=not is_whole)
    margin_differences(plain, ask("long", prompt, max_tokens=24), result.tokens, find_bound(gemma))
    plain.close()


def test_a_prompt_longer_than_the_context_is_refused_in_one_line(smollm2: Path) -> None:
    engine = real_engine(smollm2, n_ctx=512)
    result = drive(engine, [ask("long", read_text(engine, read_long(45)))])["long"]
    engine.close()
    assert result.failed is not None and result.failed.error.code == "context_length_exceeded"
    assert "\n" not in result.failed.error.message


# ---- prefixes
@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
def test_a_prefix_is_reused_and_the_text_is_that_of_a_fresh_cache(smollm2: Path, kind: str) -> None:
    draft = smollm2 if kind == "draft_model" else None
    engine = real_engine(smollm2, kind, draft, n_ctx=1024, n_batch=256, num_draft_tokens=3)
    stem = render(engine, (Message("user", PASSAGE * 3),))
    first = answer(engine, "first", stem)
    onward = (*stem, *first.tokens, *read_text(engine, " And what does a dog need there?"))
    edited = (*stem[:-20], *read_text(engine, " When does the office open?"))
    found = {name: answer(engine, name, prompt) for name, prompt in {"onward": onward, "edited": edited}.items()}
    engine.close()
    reused = {name: result.started.cached_tokens for name, result in found.items() if result.started}
    assert reused["onward"] >= len(stem) + len(first.tokens) - 1
    assert reused["edited"] >= len(stem) - 21
    plain = real_engine(smollm2, n_ctx=1024, n_batch=256)
    for name, prompt in {"onward": onward, "edited": edited}.items():
        margin_differences(plain, ask(name, prompt, max_tokens=16), found[name].tokens, find_bound(smollm2))
    plain.close()


# ---- swapping
def check_swapping(target: Path, kind: str, *, num_slots: int, num_turns: int) -> None:
    """Hold four conversations in fewer slots: each goes on where it was, and says what it would say alone."""
    draft = target if kind == "draft_model" else None
    can_swap = draft is None or not read_shape(read_header(draft)).has_windows  # copies of its windows lose cells
    sizes = {"n_ctx": 768, "n_batch": 256}
    engine = real_engine(target, kind, draft, num_slots=num_slots, num_draft_tokens=3, cache_ram=256, **sizes)
    engine.scheduler.prefix_cache.swap.min_rows = 30
    plain = real_engine(target, **sizes)
    sentences = PASSAGE.split(". ")
    chats = [list(read_text(engine, f"{name}. {PASSAGE}")) for name in ("Harbour", "Ferry", "Winter", "Ticket")]
    for turn in range(num_turns):
        said_next = [sentences[(turn + number) % len(sentences)] for number in range(len(chats))]
        asked = [
            ask(f"{turn} {number}", (*chat, *read_text(engine, f" {said_next[number]}:")), max_tokens=12)
            for number, chat in enumerate(chats)
        ]
        result = drive(engine, asked)
        assert engine.miscounted_slots() == []
        for number, one in enumerate(asked):
            said = result[one.id]
            margin_differences(plain, one, said.tokens, find_bound(target))
            assert said.started is not None
            assert turn == 0 or not can_swap or said.started.cached_tokens >= len(chats[number]) - 1
            chats[number] = [*one.tokens, *said.tokens]
    assert (engine.snapshot().swapped_bytes > 0) == can_swap
    engine.close()
    plain.close()


def test_conversations_leave_a_small_cache_and_come_back(smollm2: Path) -> None:
    check_swapping(smollm2, "ngram", num_slots=1, num_turns=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "ngram", "draft_model"])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_more_conversations_come_back(request: pytest.FixtureRequest, name: str, kind: str, num_slots: int) -> None:
    check_swapping(request.getfixturevalue(name), kind, num_slots=num_slots, num_turns=5)
