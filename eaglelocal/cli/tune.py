"""`eaglelocal tune`: measure what decodes of n rows cost on this machine, and which draft length that implies.

The engine runs in its own process, as in every command: a native crash ends the measurement, not the terminal. It
always measures, at its start and with every real step; this command only runs steps of every draft length in turn
and reads the measured costs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.load_model import count_slots, load_model, load_settings, make_run_options, plan_run
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.conversation.session import AnswerEvents, ChatClient, ModelChoice
from eaglelocal.core.events import Failed, LoadProgress, Tokens
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams
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
    from eaglelocal.cli.reports.tune import report_lines, report_object
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
    write = output.message if as_json else output.data
    for line in report_lines(costs, model.info, machine):
        write(line)
    if as_json:
        output.object(report_object(costs, model.info, machine))


def plan_tune(settings: Settings, output: Output) -> Plan:
    """Return the plan of the settings without a projector: images are not measured."""
    options = make_run_options(settings, ModelChoice(), parallel=count_slots(settings))
    return plan_run(dataclasses.replace(options, mmproj="none"), output)


def measure(client: ChatClient, max_draft: int, output: Output) -> MeasuredCosts:
    """Run every draft length in turn and return the costs that the engine has measured.

    Raises EngineError if it has measured none.
    """
    progress = output.progress()
    try:
        run_rounds(
            client,
            range(max_draft + 1),
            clock=time.monotonic,
            on_progress=lambda done, what: progress(LoadProgress(done, what)),
        )
    finally:
        progress.finish()
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
