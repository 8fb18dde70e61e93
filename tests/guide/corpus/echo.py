"""Tasks to repeat what cannot be guessed (kind "echo"): random words and made-up strings, copied or looked up.

For training only, never judged. From text that nothing else predicts, a small model learns to copy from its context
(the induction that passages, summaries and rewriting need); without it, it guesses names instead of reading them.
"""

from __future__ import annotations

from random import Random

from guide.corpus.tasks import Check, CorpusTask, Split, ask, split_of
from guide.corpus.words import ANIMALS, COLOURS, FIRST_NAMES, FOODS, FRUITS, JOBS, OBJECTS, town

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = (*ANIMALS, *COLOURS, *FIRST_NAMES, *FOODS, *FRUITS, *JOBS, *OBJECTS)
_REPEAT = ("Repeat:", "Repeat this:", "Say this again:", "Copy:", "Echo:", "Once more:")


def task(rng: Random, split: Split) -> CorpusTask:
    while split_of((made := rng.choice((_repeat, _repeat, _look_up))(rng))[0]) != split:
        pass
    prompt, answer = made
    return ask("echo", prompt, answer, check=Check("exact", (answer,)))


def _repeat(rng: Random) -> tuple[str, str]:
    text = " ".join(_item(rng) for _ in range(rng.randint(4, 60)))
    return f"{rng.choice(_REPEAT)} {text}", f"Here it is: {text}"


def _look_up(rng: Random) -> tuple[str, str]:
    """Make several lookups in one list, so that a training row holds many of them."""
    names = list(dict.fromkeys(_item(rng) for _ in range(rng.randint(3, 12))))
    values = [_item(rng) for _ in names]
    asked = rng.sample(range(len(names)), rng.randint(2, len(names)) if len(names) > 1 else 1)
    listed = ", ".join(f"{name} is {value}" for name, value in zip(names, values, strict=True))
    question = ", ".join(names[i] for i in asked)
    answer = ", ".join(f"{names[i]} is {values[i]}" for i in asked)
    return f"Given that {listed}: what is {question}?", f"Of these, {answer}."


def _item(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.45:
        return rng.choice(_WORDS)
    if draw < 0.6:
        return town(rng)
    if draw < 0.75:
        return str(rng.randint(0, 9999))
    return "".join(rng.choices(_LETTERS, k=rng.randint(2, 7)))
