"""The contents and the order of a measurement: modes, sides, prompts, and which prompts run at once. Pure.

Drift of the machine cancels if every side is asked equally often at every place. So the sides rotate from
prompt to prompt, and every other turn runs backwards: A B, B A, B A, A B. Categories alternate, so that a run
that is stopped early has prompts of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import TypeVar

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.core.plan import MAX_SLOTS
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import OFF, Spec, parse_spec
from eaglelocal.errors import UsageError

T = TypeVar("T")
MIXED = "mixed"  # label of waves with prompts of several categories


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Prompts that are sent at once, to every side in turn. `unit` numbers the prompts; repeats share it."""

    category: str
    concurrency: int
    unit: int
    repeat: int
    turn: int  # counts within the category: gives the order of the sides
    prompts: tuple[BenchPrompt, ...]
    is_counted: bool = True  # False: warm-up


def rotate(sides: Sequence[T], turn: int) -> tuple[T, ...]:
    """Return the sides in their order for this turn.

    >>> ["".join(rotate("AB", turn)) for turn in range(4)]
    ['AB', 'BA', 'BA', 'AB']
    """
    shift, is_back = turn % len(sides), turn // len(sides) % 2 == 1
    order = (*sides[shift:], *sides[:shift])
    return order[::-1] if is_back else order


def order_prompts(
    prompts: Mapping[str, Sequence[BenchPrompt]], levels: Sequence[int], *, repeats: int, warm_up: Sequence[BenchPrompt]
) -> list[PromptGroup]:
    """Return all tasks, by rising level: prompts one at a time at level 1, in waves of that size at the others.

    Each level begins with warm-up tasks that do not count: every warm-up prompt at level 1, else one wave.
    """
    planned: list[PromptGroup] = []
    for level in sorted(levels):
        planned += make_warm_up(warm_up, level)
        planned += make_single_groups(prompts, repeats) if level == 1 else make_waves(prompts, level, repeats)
    return planned


def make_warm_up(prompts: Sequence[BenchPrompt], level: int) -> list[PromptGroup]:
    if not prompts:
        return []
    waves = [(prompt,) for prompt in prompts] if level == 1 else [tuple(islice(cycle(prompts), level))]
    return [PromptGroup("warm-up", level, unit, 0, unit, wave, is_counted=False) for unit, wave in enumerate(waves)]


def make_single_groups(prompts: Mapping[str, Sequence[BenchPrompt]], repeats: int) -> list[PromptGroup]:
    """Return tasks of one prompt each. A repeat goes over all prompts again, not over one prompt several times."""
    return [
        PromptGroup(category, 1, unit, repeat, turn=place + unit + repeat * len(prompts[category]), prompts=(prompt,))
        for repeat in range(repeats)
        for unit, category, prompt in alternate(prompts)
        for place in [list(prompts).index(category)]
    ]


def make_waves(prompts: Mapping[str, Sequence[BenchPrompt]], concurrency: int, repeats: int) -> list[PromptGroup]:
    """Return tasks of `concurrency` prompts, mixed from all categories; the first prompts fill up the last one."""
    category = MIXED if len(prompts) > 1 else next(iter(prompts), MIXED)
    mixed = [prompt for _, _, prompt in alternate(prompts)]
    num_waves = -(-len(mixed) // concurrency)
    waves = list(split_batches(islice(cycle(mixed), num_waves * concurrency), concurrency))
    return [
        PromptGroup(category, concurrency, unit, repeat, turn=unit + repeat * num_waves, prompts=wave)
        for repeat in range(repeats)
        for unit, wave in enumerate(waves)
    ]


def alternate(prompts: Mapping[str, Sequence[BenchPrompt]]) -> Iterator[tuple[int, str, BenchPrompt]]:
    """Yield (number within its category, category, prompt): the first of each category, then the second of each."""
    for number in range(max(map(len, prompts.values()))):
        for category, found in prompts.items():
            if number < len(found):
                yield number, category, found[number]


def split_batches(items: Iterator[T], size: int) -> Iterator[tuple[T, ...]]:
    while batch := tuple(islice(items, size)):
        yield batch


def parse_modes(text: str) -> tuple[Spec, ...]:
    """Parse `auto,2,4` into modes, in that order, each once.

    Raises UsageError if plain decoding is among them: every mode is compared with it anyway.
    """
    modes = tuple(dict.fromkeys(parse_spec(part.strip()) for part in text.split(",")))
    if OFF in modes:
        hint = "leave it out: every mode is compared with plain decoding"
        raise UsageError(f"--spec {text} names plain decoding", hint=hint)
    return modes


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse `1,2,4` into numbers of requests at once, each once, in that order. Raises UsageError."""
    try:
        levels = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        levels = (0,)
    if not all(1 <= level <= MAX_SLOTS for level in levels):
        raise UsageError(f"--concurrency must be numbers from 1 to {MAX_SLOTS}, such as 1,2,4,8, not {text!r}")
    return levels
