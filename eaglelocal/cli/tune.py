"""`eaglelocal tune`: measure what decodes of n rows cost on this machine, and which draft length that implies.

The engine runs in its own process, as in every command: a native crash ends the measurement, not the terminal. It
always measures, at its start and with every real step; this command only runs steps of every draft length in turn
and reads the measured costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.load_model import count_slots, load_model, load_settings, make_run_options, plan_run
from eaglelocal.cli.output import Output, shown_progress, standard_output
from eaglelocal.conversation.session import AnswerEvents, ChatClient
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import EngineInfo, Failed, Tokens
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.errors import EngineError

if TYPE_CHECKING:
    from eaglelocal.core.plan import Plan
    from eaglelocal.core.stats import MeasuredCosts
    from eaglelocal.settings import Settings

LENGTH_S = 1.0  # for each draft length
PATIENCE = 4.0  # the measurement ends after this many times the planned time, however slow the machine is
STEPS = 6  # consecutive steps of one draft length
PROMPT = "A draft of several tokens is checked by one decode of the target; what it costs depends on the machine."


@flags.takes("target", "draft", "draft_type", *flags.MACHINE, before="as_json")
def tune(context: typer.Context, parallel: flags.Slots = None, as_json: flags.AsJson = False) -> None:
    """Measure what drafting costs here, and which length pays.

    \b
    eaglelocal tune
    eaglelocal tune --target demo@1b:bf16 --threads 2 --json
    """
    from eaglelocal.loading.calibration_store import machine_name
    from eaglelocal.probe.probe import probe

    settings = load_settings(context.params)
    output = standard_output(colour=settings.colour)
    model = load_model(plan_tune(settings, output), output)
    try:
        costs = measure(model.client, model.info.max_draft, output)
    finally:
        model.client.close()
    machine = machine_name(probe())
    output.report(report_lines(costs, model.info, machine), beside_object=as_json)
    if as_json:
        output.object(report_object(costs, model.info, machine))


def plan_tune(settings: Settings, output: Output) -> Plan:
    """Return the plan of the settings without a projector: images are not measured."""
    options = make_run_options(settings, parallel=count_slots(settings))
    return plan_run(replace(options, mmproj="none"), output)


def measure(client: ChatClient, max_draft: int, output: Output) -> MeasuredCosts:
    """Run every draft length in turn and return the costs that the engine has measured.

    Raises EngineError if it has measured none.
    """
    with shown_progress(output) as show:
        run_rounds(client, range(max_draft + 1), clock=time.monotonic, on_progress=show)
    costs = client.snapshot().costs
    if not costs.decodes:
        raise EngineError("the engine measured nothing")
    return costs


def run_rounds(
    client: ChatClient, lengths: range, *, clock: Callable[[], float], on_progress: Callable[[float, str], None]
) -> None:
    """Run rounds over all lengths, so that a slow minute affects them alike.

    At least one round, unless it takes longer than PATIENCE times the planned time.
    """
    began_at, rounds, box_s = clock(), 0, LENGTH_S * len(lengths)
    while rounds == 0 or clock() - began_at < box_s:
        for length in lengths:
            if clock() - began_at > PATIENCE * box_s:
                return
            on_progress(min(1.0, (clock() - began_at) / box_s), "measuring draft lengths")
            run_steps(client.stream(make_request(length, rounds, len(lengths))))
        rounds += 1


def make_request(length: int, number: int, num_lengths: int) -> ChatRequest:
    """Return a request with enough tokens for STEPS steps, even if every draft is accepted."""
    params = SamplingParams(temperature=0.0, max_tokens=(STEPS + 2) * num_lengths, ignore_eos=True)
    return ChatRequest(id=f"tune-{number}-{length}", text=PROMPT, params=params, spec=fixed_spec(length))


def run_steps(answer: AnswerEvents) -> None:
    """Follow an answer for STEPS steps, then cancel it. Raises the error of a failure."""
    steps = 0
    for event in answer:
        if isinstance(event, Failed):
            raise event.error
        steps += isinstance(event, Tokens)
        if steps == STEPS:
            answer.cancel()


# ---- the draft lengths that measured costs imply, and the report
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
CLIFF = 0.3  # of a plain decode: one more row that costs more than this is a cliff
SURE = 2.0  # standard errors by which two sizes must differ: one of twenty pairs of equal sizes does
WIDTH = 80
BAR_CELLS = 30
MS = 1000
BUSY = "is something else running?"


@dataclass(frozen=True, slots=True)
class Implied:
    """The best draft length if each drafted token is accepted with probability `acceptance`; 0: plain decoding."""

    acceptance: float
    num_draft_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True)
class Implications:
    """The costs of a step by its number of drafted tokens, and the draft lengths that they imply.

        tokens of a step    E(k) = 1 + a + ... + a^k, with k drafted and each accepted with probability a
        its seconds         C(k) = decode of k + 1 rows + draft steps for k tokens + the rest
        speed-up            E(k) * C(0) / C(k)

    (Leviathan et al. 2023, with measured decodes instead of equal ones.) The rest is a step's time outside decodes and
    draft steps.
    """

    seconds: list[float]  # [drafted tokens]

    @classmethod
    def of(cls, costs: MeasuredCosts) -> Implications:
        from eaglelocal.speculation.costs.cost_curve import interpolate_costs

        sizes = {cost.num_rows: cost.seconds for cost in costs.decodes}
        decodes = interpolate_costs(sizes, max(sizes))[1:]
        decodes = decodes[: costs.max_depth + 1]
        draft_s = draft_step_s(costs)
        drafted = [
            decode + -(-k // costs.block_size) * draft_s + costs.drafted_overhead_s for k, decode in enumerate(decodes)
        ]
        return cls([decodes[0] + costs.plain_overhead_s, *drafted[1:]])

    def speedup(self, num_draft_tokens: int, acceptance: float) -> float:
        tokens = sum(acceptance**depth for depth in range(num_draft_tokens + 1))
        return tokens * self.seconds[0] / self.seconds[num_draft_tokens]

    def best(self, acceptance: float) -> Implied:
        """Return the best draft length, out of all: costs rise in jumps, so hill climbing would stop at the first."""
        length = max(range(len(self.seconds)), key=lambda k: self.speedup(k, acceptance))
        return Implied(acceptance, length, self.speedup(length, acceptance))

    def break_even(self) -> float | None:
        """Return the lowest acceptance, in steps of 0.01, at which a draft pays; None if none does, even at 1."""
        paying = (percent / 100 for percent in range(101) if self.best(percent / 100).num_draft_tokens)
        return next(paying, None)


def draft_step_s(costs: MeasuredCosts) -> float:
    """Return the seconds of a draft step with one node, of the slowest drafter; 0.0 if none was measured."""
    first: dict[str, float] = {}
    for drafter, cost in costs.draft_steps:
        first.setdefault(drafter, cost.seconds)
    return max(first.values(), default=0.0)


def find_cliffs(costs: MeasuredCosts) -> list[int]:
    """Return the sizes that cost more than CLIFF of a plain decode for each row above the size before.

    A size that was measured at a bad moment is no cliff: two sizes on each side are compared, and the rise must exceed
    what decodes of equal sizes differ by.
    """
    decodes, found = costs.decodes, []
    for index, (low, high) in enumerate(pairwise(decodes)):
        below_s = max(each.seconds for each in decodes[max(index - 1, 0) : index + 1])
        rise_s = min(each.seconds for each in decodes[index + 1 : index + 3]) - below_s
        error_s = costs.noise * high.seconds * math.sqrt(1 / low.num_samples + 1 / high.num_samples)
        is_steep = rise_s > CLIFF * decodes[0].seconds * (high.num_rows - low.num_rows)
        found += [high.num_rows] if is_steep and rise_s > SURE * error_s else []
    return found


# ---- for people
def report_lines(costs: MeasuredCosts, info: EngineInfo, machine: str) -> list[str]:
    """Return the report, at most WIDTH columns wide."""
    noise = f"{math.exp(costs.noise):.1f}"
    return [
        f"target       {info.target}"[:WIDTH],
        f"draft        {info.draft}"[:WIDTH],
        f"machine      {machine}, {count_noun(info.threads, 'thread')}, {info.library}"[:WIDTH],
        "",
        *curve_lines(costs),
        "",
        *overhead_lines(costs),
        "",
        *implied_lines(costs),
        *([f"note         equal decodes differ by a factor of {noise}: {BUSY}"] if costs.is_noisy else []),
    ]


def curve_lines(costs: MeasuredCosts) -> list[str]:
    one_s = costs.decodes[0].seconds
    scale = BAR_CELLS / max(cost.seconds for cost in costs.decodes)
    shown = ["rows        ms   x one row   ms per extra row"]
    before = None
    for cost in costs.decodes:
        extra = ""
        if before is not None:
            extra = f"{(cost.seconds - before.seconds) / (cost.num_rows - before.num_rows) * MS:+.2f}"
        bar = "█" * max(1, round(cost.seconds * scale))
        shown.append(
            f"{cost.num_rows:4d} {cost.seconds * MS:9.2f} {cost.seconds / one_s:11.2f} {extra:>18}   {bar}".rstrip()
        )
        before = cost
    return shown


def overhead_lines(costs: MeasuredCosts) -> list[str]:
    """Return lines on draft steps, the rest of a step, and the cost of context."""
    tokens = f" for {costs.block_size} tokens" if costs.block_size > 1 else ""
    steps = []
    for drafter, cost in costs.draft_steps:
        nodes = f" for {cost.num_rows} nodes" if cost.num_rows != 1 else ""
        steps.append(f"draft step   {drafter}: {cost.seconds * MS:.2f} ms{tokens}{nodes}")
    plain, drafted = costs.plain_overhead_s * MS, costs.drafted_overhead_s * MS
    return [
        *(steps or ["draft step   none was measured: drafting counts as free below"]),
        f"the rest     {plain:.2f} ms a plain step, {drafted:.2f} ms a drafted one",
        f"context      {_context_text(costs)}",
    ]


def _context_text(costs: MeasuredCosts) -> str:
    if costs.context is None:
        return "no long context was seen yet; its cost is measured while you chat"
    once, each = costs.context.per_cell_s * 1000 * MS, costs.context.per_row_cell_s * 1000 * MS
    return f"1000 tokens add about {once:.1f} ms, and {each:.1f} ms for each row"


def implied_lines(costs: MeasuredCosts) -> list[str]:
    implications = Implications.of(costs)
    lines = ["accepted per token   best draft   speed"]
    for each in map(implications.best, ACCEPTANCES):
        draft = count_noun(each.num_draft_tokens, "token") if each.num_draft_tokens else "none"
        lines.append(f"{each.acceptance:18.2f}   {draft:<10}   {each.speedup:.2f}x")
    cliffs = ", ".join(map(str, find_cliffs(costs)))
    return [
        *lines,
        "",
        f"cliffs       {f'before {cliffs} rows' if cliffs else 'none: every further row costs little'}",
        f"verdict      {_verdict(implications.break_even(), costs)}",
    ]


def _verdict(break_even: float | None, costs: MeasuredCosts) -> str:
    if break_even == 0.0 and costs.is_noisy:
        return "none: equal decodes differ more than further rows cost"
    if break_even is None:
        return "drafting cannot pay here, even if every token were accepted"
    if break_even == 0.0:
        return "a further row costs nothing here: drafting always pays"
    return f"drafting pays if more than about {break_even:.0%} of it is accepted"


# ---- for programs
def report_object(costs: MeasuredCosts, info: EngineInfo, machine: str) -> dict[str, object]:
    implications = Implications.of(costs)
    one_s = costs.decodes[0].seconds
    return {
        "target": info.target,
        "draft": info.draft,
        "threads": info.threads,
        "machine": machine,
        "llama_cpp": info.library,
        "rows": [
            {"rows": c.num_rows, "seconds": c.seconds, "ratio": c.seconds / one_s, "samples": c.num_samples}
            for c in costs.decodes
        ],
        "draft_steps": [
            {"drafter": drafter, "rows": c.num_rows, "seconds": c.seconds} for drafter, c in costs.draft_steps
        ],
        "tokens_a_draft_step": costs.block_size,
        "rest_s": {"plain": costs.plain_overhead_s, "drafted": costs.drafted_overhead_s},
        "noise": costs.noise,
        "context_s": costs.context
        and {"per_cell": costs.context.per_cell_s, "per_row_and_cell": costs.context.per_row_cell_s},
        "implied": [
            {"acceptance": i.acceptance, "draft_tokens": i.num_draft_tokens, "speedup": i.speedup}
            for i in map(implications.best, ACCEPTANCES)
        ],
        "cliffs": find_cliffs(costs),
        "break_even_acceptance": implications.break_even(),
    }
