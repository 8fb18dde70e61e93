"""The measurement itself: every side answers every task in turn, and its texts are compared with plain decoding.

It knows sides and tasks; results.py evaluates the figures. Results are appended to the caller's list, so that
they are kept when a run is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from eaglelocal.bench.prompt_run import Phase, Side, ask
from eaglelocal.bench.run_order import PromptGroup, rotate
from eaglelocal.bench.text_identity import Difference, TextComparer, first_difference
from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import RequestError

PLAIN = "plain"
TOO_LONG = "context_length_exceeded"  # OpenAI's error code
OnAsk = Callable[[PromptGroup, float], None]  # gets the task that starts, and the share of the work done
IsNeeded = Callable[[PromptGroup], bool]
_SEEDS = 2**32


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
        return [replace(self._params, seed=(first + i) % _SEEDS) for i in range(len(task.prompts))]

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
