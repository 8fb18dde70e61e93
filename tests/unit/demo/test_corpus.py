"""The corpus: every kind on both splits, seeds, shares, and the ChatML form."""

from __future__ import annotations

from itertools import islice

import pytest
from guide.corpus import mixture
from guide.corpus.tasks import Check, CorpusMessage, CorpusTask, Split, ask, is_right

pytestmark = pytest.mark.full

KINDS = tuple(mixture.KINDS)


def prompts(kind: str, split: Split, num_tasks: int) -> set[str]:
    return {mixture.render_prompt(task) for task in islice(mixture.tasks_of(kind, 3, split), num_tasks)}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_pass_their_own_check(kind: str) -> None:
    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        for task in islice(mixture.tasks_of(kind, 7, split), 300):
            assert task.kind == kind
            assert task.messages[-1].role == "user"
            assert is_right(task, task.answer), task
            assert not is_right(task, "I have no answer")


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_no_prompt(kind: str) -> None:
    held_out = prompts(kind, "held_out", 400)
    assert len(held_out) > 30
    assert not held_out & prompts(kind, "train", 8000)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_same_seed_same_conversations(split: Split) -> None:
    first, again = (list(islice(mixture.conversations(5, split), 200)) for _ in range(2))
    assert first == again
    assert first != list(islice(mixture.conversations(6, split), 200))


def test_all_kinds_and_lengths_appear() -> None:
    drawn = list(islice(mixture.conversations(1, "train"), 3000))
    shares = {kind: sum(task.kind == kind for task in drawn) / len(drawn) for kind in KINDS}
    for kind, share in shares.items():
        assert share == pytest.approx(mixture.KINDS[kind].weight, abs=0.03)
    assert sum(task.messages[0].role == "system" for task in drawn) / len(drawn) == pytest.approx(0.25, abs=0.04)
    lengths = sorted(sum(len(text) for text, _ in mixture.render(task)) for task in drawn)
    assert lengths[len(lengths) // 2] < 1000 < 3500 < lengths[-1]


def test_weights_are_shares() -> None:
    assert sum(kind.weight for kind in mixture.TRAINED.values()) == pytest.approx(1.0)


def test_render_marks_assistant_text_and_its_end() -> None:
    task = CorpusTask(
        "chat",
        (
            CorpusMessage("system", "S"),
            CorpusMessage("user", "A"),
            CorpusMessage("assistant", "B"),
            CorpusMessage("user", "C"),
        ),
        "D",
        Check("exact", ("D",)),
    )
    pieces = mixture.render(task)
    assert "".join(text for text, _ in pieces) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\nD<|im_end|>\n"
    )
    assert [text for text, learned in pieces if learned] == ["B<|im_end|>", "D<|im_end|>"]
    assert "".join(text for text, _ in pieces).startswith(mixture.render_prompt(task))


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (Check("exact", ("Bonn",)), " Bonn\n", "In Bonn"),
        (Check("contains", ("port", "8421")), "The PORT is 8421", "The port is 8080"),
        (Check("number", ("632",)), "1 2 then 347 + 285 = 632.", "632 is not 633"),
        (Check("python"), "Here:\n```python\ndef f(x):\n    return x\n```", "```python\ndef f(x:\n```"),
        (Check("python"), "```python\ndef f():\n    pass\n```", "```python\nx = 1\n```"),
    ],
)
def test_checks_tell_right_from_wrong(check: Check, right: str, wrong: str) -> None:
    task = ask("any", "question", "answer", check=check)
    assert is_right(task, right)
    assert not is_right(task, wrong)
