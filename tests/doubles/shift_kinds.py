"""Kinds of work by which a shift is measured: those of the demo's corpus, and two that people notice most.

    german  sentences in German, said again
    json    objects of an agent: fields as JSON

The corpus has JSON among its texts to copy and German only in questions. Here "copy" has none of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from guide.corpus import german, mixture
from guide.corpus.tasks import Check, CorpusTask, Split, ask

KINDS = (*mixture.KINDS, "german", "json")
REQUESTS = ("Repeat this text:", "Copy this:", "Please repeat the following exactly:", "Echo the text.")


def tasks_of(kind: str, seed: int, split: Split) -> Iterator[CorpusTask]:
    """Yield tasks of one kind without end, the same for the same seed."""
    if kind == "german":
        return german_tasks(Random(f"{kind}/{split}/{seed}"), split)
    if kind == "json":
        return (task for task in mixture.tasks_of("copy", seed, split) if is_json(task))
    tasks = mixture.tasks_of(kind, seed, split)
    return (task for task in tasks if not is_json(task)) if kind == "copy" else tasks


def is_json(task: CorpusTask) -> bool:
    return task.answer.startswith("{")


def german_tasks(rng: Random, split: Split) -> Iterator[CorpusTask]:
    while True:
        text = " ".join(german.sentence(rng)[0] for _ in range(rng.randint(2, 4)))
        yield ask("german", f"{rng.choice(REQUESTS)}\n{text}", text, check=Check("exact", (text,)))
