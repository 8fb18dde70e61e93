"""The measurement itself: every side answers every task in turn, and its texts are compared with plain decoding.

It knows sides and tasks; results.py evaluates the figures. Results are appended to the caller's list, so that
they are kept when a run is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TypeVar

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.prompt_run import Phase, Side, ask
from eaglelocal.bench.text_identity import Difference, TextComparer, first_difference
from eaglelocal.core.plan import MAX_SLOTS
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import OFF, Spec, parse_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import RequestError, UsageError

# ---- run order: the contents and the order of a measurement: modes, sides, prompts, and which prompts run at once.
# Pure
#
# Drift of the machine cancels if every side is asked equally often at every place. So the sides rotate from prompt to
# prompt, and every other turn runs backwards: A B, B A, B A, A B. Categories alternate, so that a run that is stopped
# early has prompts of each.
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
    num_waves, endless = -(-len(mixed) // concurrency), cycle(mixed)
    waves = [tuple(islice(endless, concurrency)) for _ in range(num_waves)]
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


# ---- measure
PLAIN = "plain"
TOO_LONG = "context_length_exceeded"  # OpenAI's error code
OnAsk = Callable[[PromptGroup, float], None]  # gets the task that starts, and the share of the work done
IsNeeded = Callable[[PromptGroup], bool]
SEEDS = 2**32


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task with every side's answers (by label), and where their texts differ from plain decoding."""

    task: PromptGroup
    phases: Mapping[str, Phase]
    differences: tuple[Difference, ...] = ()


class Measurement:
    """A runner of tasks. The first side decodes plainly; sides of other servers have no token ids to compare."""

    def __init__(
        self, sides: Sequence[Side], params: SamplingParams, *, comparer: TextComparer, on_ask: OnAsk, skip: int = 0
    ) -> None:
        assert sides[0].label == PLAIN
        self._sides, self._params, self._comparer, self._on_ask = sides, params, comparer, on_ask
        self._skip = skip
        self._num_asked = 0
        self.too_long: list[RequestError] = []  # of counted tasks that were skipped

    def run(self, tasks: Sequence[PromptGroup], results: list[TaskResult], *, is_needed: IsNeeded) -> None:
        """Append a result to `results` for each counted task that `is_needed` is true of when its turn comes.

        Tasks longer than the context are skipped and noted in `too_long`; other errors are raised.
        """
        for number, task in enumerate(tasks):
            if not is_needed(task):
                continue
            try:
                result = self._run_task(task, number, len(tasks))
            except RequestError as error:  # a file may hold a few texts that are longer than the context
                if error.code != TOO_LONG:
                    raise
                self.too_long += [error] * task.is_counted
                continue
            if task.is_counted:
                results.append(result)

    def _run_task(self, task: PromptGroup, number: int, total: int) -> TaskResult:
        phases: dict[str, Phase] = {}
        params = self._seed_params(task)
        for place, side in enumerate(rotate(self._sides, task.turn)):
            self._on_ask(task, (number + place / len(self._sides)) / total)
            self._num_asked += 1
            side.clear_cache()
            phases[side.label] = ask(side, task.prompts, params, name=f"bench-{self._num_asked}", skip=self._skip)
        return TaskResult(task, phases, tuple(self._differences(task, params, phases)) if task.is_counted else ())

    def _seed_params(self, task: PromptGroup) -> list[SamplingParams]:
        """Return the parameters with one seed for each answer, the same for all sides: drafting changes no text."""
        first = (self._params.seed or 0) + task.turn * len(task.prompts)
        return [replace(self._params, seed=(first + i) % SEEDS) for i in range(len(task.prompts))]

    def _differences(
        self, task: PromptGroup, params: Sequence[SamplingParams], phases: Mapping[str, Phase]
    ) -> Iterator[Difference]:
        for side in self._sides[1:]:
            if side.spec is None:
                continue
            pairs = zip(phases[PLAIN].answers, phases[side.label].answers, strict=True)
            for prompt, sampling, (plain, other) in zip(task.prompts, params, pairs, strict=True):
                flip = first_difference(plain.tokens, other.tokens)
                if flip is not None:
                    common = plain.tokens[: flip.index]
                    yield self._comparer.examine(prompt, sampling, other=side, flip=flip, common=common)
