"""The corpus as one endless, seeded stream of conversations, and their rendering as text.

Knows the kinds of task, their shares, how tasks are joined to longer conversations, and ChatML with the parts that
count in the loss. Does not know tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from eaglelocal.core.records import dataclass
from guide.corpus import arithmetic, copying, echo, german, guide, passage_qa, python_code, summary
from guide.corpus.tasks import CorpusMessage, CorpusTask, Split, TaskMaker

Piece = tuple[str, bool]  # text, and whether it is the assistant's (and counts in the loss)

START, END = "<|im_start|>", "<|im_end|>"
_JOINED_SHARE = 0.2
_SYSTEM_SHARE = 0.25
_SYSTEM_MESSAGES = (
    "You are the built-in guide to eaglelocal.",
    "You are a helpful assistant.",
    "You are a helpful, honest assistant.",
    "You are a small assistant that runs on a home computer.",
    "You are eaglelocal's guide. Be brief.",
    "Answer briefly and correctly.",
    "Be friendly and precise.",
    "You help people with their home lab.",
    "You answer questions, translate, calculate and write short Python code.",
    "You are an assistant in a terminal.",
    "Use plain words.",
    "You are a careful assistant. Show your working when you calculate.",
)


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of task: the function that makes its tasks, and its share of all tasks."""

    make: TaskMaker
    weight: float


KINDS: dict[str, TaskKind] = {
    "chat": TaskKind(guide.task, 0.19),
    "summarise": TaskKind(summary.task, 0.105),
    "passage": TaskKind(passage_qa.task, 0.19),
    "math": TaskKind(arithmetic.task, 0.115),
    "translate": TaskKind(german.task, 0.14),
    "python": TaskKind(python_code.task, 0.07),
    "copy": TaskKind(copying.task, 0.08),
}
TRAINED = {**KINDS, "echo": TaskKind(echo.task, 0.11)}  # echo is only for training
_NAMES = tuple(TRAINED)
_WEIGHTS = tuple(kind.weight for kind in TRAINED.values())


def conversations(seed: int, split: Split) -> Iterator[CorpusTask]:
    """Yield tasks of all kinds without end, the same for the same seed; some joined, some with a system message."""
    rng = Random(f"{split}/{seed}")
    while True:
        yield _with_system(rng, _joined(rng, split) if rng.random() < _JOINED_SHARE else _draw(rng, split))


def tasks_of(kind: str, seed: int, split: Split) -> Iterator[CorpusTask]:
    """Yield tasks of one kind without end, as an evaluation asks them."""
    rng = Random(f"{kind}/{split}/{seed}")
    while True:
        yield KINDS[kind].make(rng, split)


def render(task: CorpusTask) -> list[Piece]:
    """Return the whole conversation in ChatML; the assistant's pieces end with their end mark."""
    pieces: list[Piece] = []
    for message in (*task.messages, CorpusMessage("assistant", task.answer)):
        if message.role == "assistant":
            pieces += [(f"{START}assistant\n", False), (f"{message.content}{END}", True), ("\n", False)]
        else:
            pieces.append((f"{START}{message.role}\n{message.content}{END}\n", False))
    return pieces


def render_prompt(task: CorpusTask) -> str:
    """Return the prompt in ChatML, up to the beginning of the answer."""
    turns = (f"{START}{message.role}\n{message.content}{END}\n" for message in task.messages)
    return "".join((*turns, f"{START}assistant\n"))


def _draw(rng: Random, split: Split) -> CorpusTask:
    name = rng.choices(_NAMES, _WEIGHTS)[0]
    return TRAINED[name].make(rng, split)


def _joined(rng: Random, split: Split) -> CorpusTask:
    """Join several tasks, mostly two to four, to one conversation; the last is judged, the others are history."""
    num_tasks = rng.choice((2, 2, 3, 4)) if rng.random() < 0.88 else rng.randint(5, 11)
    *earlier, last = [_draw(rng, split) for _ in range(num_tasks)]
    history = [m for task in earlier for m in (*task.messages, CorpusMessage("assistant", task.answer))]
    return CorpusTask(last.kind, (*history, *last.messages), last.answer, last.check)


def _with_system(rng: Random, task: CorpusTask) -> CorpusTask:
    if rng.random() >= _SYSTEM_SHARE:
        return task
    system = CorpusMessage("system", rng.choice(_SYSTEM_MESSAGES))
    return CorpusTask(task.kind, (system, *task.messages), task.answer, task.check)
