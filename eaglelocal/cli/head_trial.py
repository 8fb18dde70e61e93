"""The trial of an imported head with its target, in a real engine: which reading of it is right, if any.

A reading is an interpretation of the head's configuration: tapped layers and places of norms. Each one is written
to the file's header and loaded; prompts, and since answers are greedy also texts, are the same for all. The
criteria are in hub/heads/version_records.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts
from eaglelocal.conversation.session import ChatClient
from eaglelocal.core.events import Failed, Finished, Tokens
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY, NORM_OUTPUT_KEY
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import patch_header
from eaglelocal.hub.heads.convert import HeadReading, ReadHead, pad_taps
from eaglelocal.hub.heads.medusa_head import MedusaHead
from eaglelocal.hub.heads.version_records import (
    TrialAcceptance,
    has_better_first_token,
    has_longer_acceptance,
    sum_acceptance,
)

DRAFT_LENGTH = 5
NUM_TOKENS = 1000  # generated with each reading; at least two readings are tried
ANSWER_TOKENS = 96
PROMPTS_PER_KIND = 4
OTHER_HEAD = "use the head that was trained for this model; --no-trial imports this one unchecked"
PATIENCE_S = 300.0  # for the first reading; the others get the same number of prompts

OpenEngine = Callable[[Path], ChatClient]
OnProgress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class TriedReading:
    """A reading and its figures in the trial; a Medusa head has only one, which is None."""

    reading: HeadReading | None
    figures: TrialAcceptance


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The readings of a trial, and the best of them."""

    tried: tuple[TriedReading, ...]  # in the order of the trials; the first follows the configuration
    best: TriedReading

    @property
    def is_as_stated(self) -> bool:
        return self.best is self.tried[0]

    @property
    def is_tie(self) -> bool:
        """True if the best reading and the one with the other `norm_output` are accepted equally well.

        Either will do then, as where the gains of the last norm are nearly equal.
        """
        if self.best.reading is None:
            return False
        flipped = replace(self.best.reading, norm_output=not self.best.reading.norm_output)
        others = [tried.figures for tried in self.tried if tried.reading == flipped]
        return bool(others) and not has_longer_acceptance(self.best.figures, others[0])


class HeadTrial:
    """A trial of a head in one reading after the other. `open_engine` starts an engine with the head at a path."""

    def __init__(
        self,
        path: Path,
        head: ReadHead | MedusaHead,
        *,
        n_layer: int,
        has_template: bool,
        open_engine: OpenEngine,
        on_progress: OnProgress,
    ) -> None:
        self._path, self._head, self._n_layer = path, head, n_layer
        self._open_engine, self._on_progress = open_engine, on_progress
        self._prompts, self._has_template = choose_prompts(), has_template
        self._tried: list[TriedReading] = []
        self._num_readings = 1
        if not isinstance(head, MedusaHead):
            self._num_readings += len(head.alternatives()) + (not head.is_parallel)

    def run(self) -> TrialOutcome:
        """Try the readings and leave the best one in the file. Raises IncompatibleError if none knows the target."""
        best = self._try(None) if isinstance(self._head, MedusaHead) else self._choose_reading(self._head)
        check_knows_target(self._head.name, best.figures)
        write_reading(self._path, best.reading, self._n_layer, best.figures.length)
        return TrialOutcome(tuple(self._tried), best)

    def _choose_reading(self, head: ReadHead) -> TriedReading:
        chosen = head.stated
        best = self._try(chosen)
        for reading in head.alternatives():
            other = self._try(reading)
            if has_better_first_token(other.figures, best.figures):
                best, chosen = other, reading
        if not head.is_parallel:  # no row of a P-EAGLE head reads the state of another
            other = self._try(replace(chosen, norm_output=not chosen.norm_output))
            best = other if has_longer_acceptance(other.figures, best.figures) else best
        return best

    def _try(self, reading: HeadReading | None) -> TriedReading:
        write_reading(self._path, reading, self._n_layer, 0.0)
        self._show(0.0)
        client = self._open_engine(self._path)
        try:
            figures, num_prompts = ask_all(client, self._requests(), on_tokens=self._show)
        finally:
            client.close()
        self._prompts = self._prompts[:num_prompts]
        self._tried.append(TriedReading(reading, figures))
        return self._tried[-1]

    def _requests(self) -> list[ChatRequest]:
        return [make_request(prompt, i, has_template=self._has_template) for i, prompt in enumerate(self._prompts)]

    def _show(self, share: float) -> None:
        number = len(self._tried)
        what = f"trying the head, {number + 1} of {self._num_readings}"
        self._on_progress((number + share) / self._num_readings, what)


def write_reading(path: Path, reading: HeadReading | None, n_layer: int, length: float) -> None:
    keys: dict[str, tuple[int, ...] | bool | float] = {ACCEPTANCE_LENGTH_KEY: length}
    if reading is not None:
        keys |= {
            "eagle3.target_layers": pad_taps(reading.taps, n_layer),
            "eagle3.norm_before_residual": reading.norm_before_residual,
            NORM_OUTPUT_KEY: reading.norm_output,
        }
    patch_header(read_header(path), keys)


def check_knows_target(name: str, figures: TrialAcceptance, *, hint: str = OTHER_HEAD) -> None:
    """Raise IncompatibleError if too few of a head's first drafted tokens are accepted."""
    if figures.knows_target:
        return
    raise IncompatibleError(
        f"{name} does not fit this target: {figures.first:.1%} of its first drafted tokens are accepted "
        f"({figures.drafts} drafts), and at least {figures.least:.1%} are needed; the most common token makes up "
        f"{figures.commonest_share:.1%} of the text",
        hint=hint,
    )


def choose_prompts() -> list[BenchPrompt]:
    kinds: dict[str, list[BenchPrompt]] = {}
    for prompt in builtin_prompts((), PROMPTS_PER_KIND):
        kinds.setdefault(prompt.category, []).append(prompt)
    return [prompt for turn in zip(*kinds.values(), strict=True) for prompt in turn]


def ask_all(
    client: ChatClient,
    requests: Sequence[ChatRequest],
    *,
    on_tokens: Callable[[float], None],
    num_tokens: int = NUM_TOKENS,
) -> tuple[TrialAcceptance, int]:
    """Send requests until there are `num_tokens` tokens or PATIENCE_S seconds have passed.

    Returns the figures and the number of requests sent. `on_tokens` gets the share of the tokens so far.
    """
    began_at, counts, tokens = time.monotonic(), [], list[int]()
    for request in requests:
        finished = _ask(client, request, tokens)
        counts.append((finished.speculation.drafts, finished.speculation.accepted_per_position))
        on_tokens(min(len(tokens) / num_tokens, 1.0))
        if len(tokens) >= num_tokens or time.monotonic() - began_at > PATIENCE_S:
            break
    return sum_acceptance(counts, tokens), len(counts)


def make_request(prompt: BenchPrompt, number: int, *, has_template: bool) -> ChatRequest:
    """Return a trial's request: a conversation, or without a chat template the question as text to complete."""
    if has_template:
        return make_trial_request(ChatRequest(id="", messages=prompt.messages), number)
    return make_trial_request(ChatRequest(id="", text=prompt.messages[-1].content), number)


def make_trial_request(request: ChatRequest, number: int) -> ChatRequest:
    """Return the request with greedy sampling and drafts of DRAFT_LENGTH."""
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS)
    return replace(request, id=f"trial-{number}", params=params, spec=fixed_spec(DRAFT_LENGTH))


def _ask(client: ChatClient, request: ChatRequest, tokens: list[int]) -> Finished:
    events: Iterable[object] = client.stream(request)
    for event in events:
        if isinstance(event, Tokens):
            tokens += [piece.token for piece in event.pieces]
        elif isinstance(event, Failed):
            raise event.error
        elif isinstance(event, Finished):
            return event
    raise AssertionError("an answer ends with Finished or Failed")
