"""The trial of an imported head with its target, in a real engine: which reading of it is right, if any.

A reading is an interpretation of the head's configuration: tapped layers and places of norms. Each one is written
to the file's header and loaded; prompts, and since answers are greedy also texts, are the same for all. The
criteria are in hub/heads/version_records.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts
from eaglelocal.cli.output import LABEL, label_text
from eaglelocal.conversation.session import ChatClient
from eaglelocal.core.events import Failed, Finished, Tokens
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY, NORM_OUTPUT_KEY
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tap_row import TapRow
from eaglelocal.gguf.writer import patch_header, roll_columns
from eaglelocal.hub.heads.convert import ReadHead
from eaglelocal.hub.heads.head_config import HeadReading
from eaglelocal.hub.heads.medusa_head import MedusaHead
from eaglelocal.hub.heads.version_records import (
    MIN_WEAK,
    TrialAcceptance,
    has_better_first_token,
    has_longer_acceptance,
    reads_target,
    sum_acceptance,
)
from eaglelocal.hub.target_resolver import FoundTarget

DRAFT_LENGTH = 5
NUM_TOKENS = 1000  # generated with each reading; at least two readings are tried
ANSWER_TOKENS = 96
PROMPTS_PER_KIND = 4
FC = "fc.weight"  # with which a head reads the target's states
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
    shuffled: TrialAcceptance | None = None  # of a weak head, where it reads its states in another order

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
        has_template: bool,
        open_engine: OpenEngine,
        on_progress: OnProgress,
    ) -> None:
        self._path, self._head = path, head
        self._open_engine, self._on_progress = open_engine, on_progress
        self._prompts, self._has_template = choose_prompts(), has_template
        self._tried: list[TriedReading] = []
        self._num_readings = 1
        if not isinstance(head, MedusaHead):
            self._num_readings += len(head.alternatives()) + (not head.is_parallel)

    def run(self) -> TrialOutcome:
        """Try the readings and leave the best one in the file. Raises IncompatibleError if none knows the target."""
        best = self._try(None) if isinstance(self._head, MedusaHead) else self._choose_reading(self._head)
        shuffled = None if best.figures.is_clear else self._measure_shuffled(best.reading)
        if shuffled is not None:
            check_reads_target(self._head.name, best.figures, shuffled)
        write_reading(self._path, best.reading, best.figures.length)
        return TrialOutcome(tuple(self._tried), best, shuffled)

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

    def _measure_shuffled(self, reading: HeadReading | None) -> TrialAcceptance:
        """Return the figures of the head where it takes each of the target's states for another: of this target or
        not, it then knows the tokens alone.
        """
        self._num_readings += 1
        header = read_header(self._path)
        fc = header.tensors[FC]
        by = fc.shape[0] // fc.type.block_elements // 2
        roll_columns(header, FC, by)
        try:
            return self._measure(reading)
        finally:
            roll_columns(header, FC, -by)

    def _try(self, reading: HeadReading | None) -> TriedReading:
        self._tried.append(TriedReading(reading, self._measure(reading)))
        return self._tried[-1]

    def _measure(self, reading: HeadReading | None) -> TrialAcceptance:
        write_reading(self._path, reading, 0.0)
        self._show(0.0)
        requests = [make_request(each, i, has_template=self._has_template) for i, each in enumerate(self._prompts)]
        with closing(self._open_engine(self._path)) as client:
            figures, num_prompts = ask_all(client, requests, on_tokens=self._show)
        self._prompts = self._prompts[:num_prompts]
        return figures

    def _show(self, share: float) -> None:
        number = len(self._tried)
        what = f"trying the head, {number + 1} of {self._num_readings}"
        self._on_progress((number + share) / self._num_readings, what)


def write_reading(path: Path, reading: HeadReading | None, length: float) -> None:
    keys: dict[str, tuple[int, ...] | bool | float] = {ACCEPTANCE_LENGTH_KEY: length}
    if reading is not None:
        keys |= {
            **TapRow(reading.taps, 0).name_layers(),
            "eagle3.norm_before_residual": reading.norm_before_residual,
            NORM_OUTPUT_KEY: reading.norm_output,
        }
    patch_header(read_header(path), keys)


def check_reads_target(name: str, figures: TrialAcceptance, shuffled: TrialAcceptance) -> None:
    """Raise IncompatibleError if a head drafts no better than with shuffled states: it is another target's."""
    if reads_target(figures, shuffled):
        return
    if figures.first < MIN_WEAK:
        what = f"and at least {MIN_WEAK:.0%} are needed of the weakest"
    else:
        what = f"and {shuffled.first:.1%} where it reads the target's states in a wrong order"
    raise IncompatibleError(
        f"{name} does not fit this target: {figures.first:.1%} of its first drafted tokens are accepted "
        f"({figures.drafts} drafts), {what}",
        hint=OTHER_HEAD,
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


# ---- the report: the head, its trial, its file
def head_lines(head: ReadHead | MedusaHead, found: FoundTarget, warnings: tuple[str, ...]) -> list[str]:
    rows = [
        ("head", f"{head.name}: {name_kind(head)}, written by {name_dialect(head)}"),
        *(medusa_rows(head, found) if isinstance(head, MedusaHead) else eagle_rows(head, found)),
        ("target", found.label),
        *(("note", warning) for warning in warnings),
    ]
    return [line for label, text in rows for line in label_text(label, text)]


def eagle_rows(head: ReadHead, found: FoundTarget) -> Iterator[tuple[str, str]]:
    yield "layer", layer_line(head)
    taps = ", ".join(map(str, head.stated.taps))
    yield "taps", f"layers {taps} of {found.info.n_layer}, each {found.info.n_embd} wide"
    yield "tokens", token_line(head, found)
    yield "norms", norm_line(head)


def medusa_rows(head: MedusaHead, found: FoundTarget) -> Iterator[tuple[str, str]]:
    shape = head.shape
    biases = "biases" if head.tensors.biases else "no biases"
    layers = "one layer" if shape.num_layers == 1 else f"{shape.num_layers} layers"
    yield "heads", f"{shape.num_parts} of {layers}, {shape.state_width} wide, {biases}"
    drafted = found.info.n_vocab if head.target_tokens is None else len(head.target_tokens)
    output = {0: "the target's output", 1: "one output of its own"}.get(len(head.outputs), "an output for each head")
    yield "tokens", f"drafts {drafted} of {found.info.n_vocab}, with {output}"


def name_dialect(head: ReadHead | MedusaHead) -> str:
    return head.tensors.dialect if isinstance(head, MedusaHead) else head.config.dialect


def name_kind(head: ReadHead | MedusaHead) -> str:
    if isinstance(head, MedusaHead):
        return "Medusa"
    if head.is_parallel:
        return "P-EAGLE"
    return "EAGLE-3.1" if head.fc_norm or head.config.norm_output else "EAGLE-3"


def layer_line(head: ReadHead) -> str:
    config = head.config
    window = f", attention window {config.window} tokens" if config.window else ""
    rope = config.rope.kind if config.rope.kind != "none" else "plain"
    layers = f"{config.num_layers} layers, " if config.num_layers > 1 else ""
    return (
        f"{layers}{config.width} wide, {config.n_head} heads of {config.head_dim} ({config.n_kv_head} for keys), "
        f"feed-forward {config.n_ff}, {rope} rope{window}"
    )


def token_line(head: ReadHead, found: FoundTarget) -> str:
    drafted = found.info.n_vocab if head.target_tokens is None else len(head.target_tokens)
    has = {"embeddings": not head.shares_embeddings, "output": head.tensors.get("lm_head.weight") is not None}
    own = " and ".join(word for word, is_own in has.items() if is_own)
    borrowed = " and ".join(word for word, is_own in has.items() if not is_own)
    parts = filter(None, [own and f"its own {own}", borrowed and f"the target's {borrowed}"])
    return f"drafts {drafted} of {found.info.n_vocab}, with {', '.join(parts)}"


def norm_line(head: ReadHead) -> str:
    names = {
        "fc_norm": head.fc_norm,
        "norm_before_fc": head.norm_before_fc,
        "norm_before_residual": head.stated.norm_before_residual,
        "norm_output": head.config.norm_output,
    }
    given = [name for name, is_set in names.items() if is_set]
    return f"{', '.join(given) or 'none of its own'} (as its configuration says)"


def trial_lines(outcome: TrialOutcome | None, path: Path) -> list[str]:
    if outcome is None:
        lines = label_text("trial", "none: its configuration is trusted")
    else:
        lines = [f"{'trial':<{LABEL}} first accepted  acceptance length  drafts  read as"]
        for tried in outcome.tried:
            figures, mark = tried.figures, "*" if tried is outcome.best else " "
            row = f"{mark}{figures.first:>14.1%}{figures.length:>19.2f}{figures.drafts:>8}"
            lines.append(f"{'':<{LABEL}}{row}  {describe_reading(tried.reading, outcome)}")
        lines += label_text("verdict", describe_verdict(outcome))
    return [*lines, *label_text("file", f"{path} ({path.stat().st_size / 1e6:.1f} MB)")]


def describe_verdict(outcome: TrialOutcome) -> str:
    if outcome.shuffled is not None:
        return (
            f"weak: it is of this target (in a wrong order, its states give {outcome.shuffled.first:.1%}), but drafts "
            "little of this text. `--draft auto` may pass it by; `eaglelocal bench --draft FILE` shows what it gains"
        )
    if outcome.best.reading is None:
        return "it predicts this target"
    reading = describe_reading(outcome.best.reading, outcome)
    alike = "; pre-norm and post-norm are accepted equally well" if outcome.is_tie else ""
    if outcome.is_as_stated:
        return f"as its configuration says: {reading}{alike}"
    return f"different from its configuration: {reading}{alike}"


def describe_reading(reading: HeadReading | None, outcome: TrialOutcome) -> str:
    """Return a reading in words: the norm, and whatever else differs between the readings that were tried."""
    others = [tried.reading for tried in outcome.tried if tried.reading is not None]
    if reading is None:
        return "it is published"
    parts = ["post-norm" if reading.norm_output else "pre-norm"]
    if any(other.taps != reading.taps for other in others):
        parts.append(f"taps {', '.join(map(str, reading.taps))}")
    if any(other.norm_before_residual != reading.norm_before_residual for other in others):
        parts.append(f"residual {'after' if reading.norm_before_residual else 'before'} its norm")
    return ", ".join(parts)


def report_object(
    head: ReadHead | MedusaHead,
    found: FoundTarget,
    outcome: TrialOutcome | None,
    warnings: tuple[str, ...],
    path: Path,
) -> dict[str, object]:
    shape: dict[str, object]
    if isinstance(head, MedusaHead):
        shape = {"heads": head.shape.num_parts, "layers": head.shape.num_layers, "outputs": len(head.outputs)}
    else:
        norms = {"fc_norm": head.fc_norm, "norm_before_fc": head.norm_before_fc}
        reading = head.stated if outcome is None else outcome.best.reading
        shape = {"layers": head.config.num_layers, **norms, **(asdict(reading) if reading else {})}
    return {
        "head": {
            "name": head.name,
            "kind": name_kind(head),
            "dialect": name_dialect(head),
            "draft_vocab": None if head.target_tokens is None else len(head.target_tokens),
            **shape,
        },
        "target": found.label,
        "trial": None if outcome is None else [tried_object(tried, outcome) for tried in outcome.tried],
        "weak": outcome is not None and outcome.shuffled is not None,
        "as_stated": outcome is None or outcome.is_as_stated,
        "notes": list(warnings),
        "file": str(path),
        "file_bytes": path.stat().st_size,
    }


def tried_object(tried: TriedReading, outcome: TrialOutcome) -> dict[str, object]:
    figures = tried.figures
    return {
        **(asdict(tried.reading) if tried.reading else {}),
        "chosen": tried is outcome.best,
        "drafts": figures.drafts,
        "accepted_per_position": list(figures.accepted_per_position),
        "first_acceptance": figures.first,
        "acceptance_length": figures.length,
        "commonest_token_share": figures.commonest_share,
    }
