"""Explain the chosen plan in sentences with figures. Pure: takes an outcome, returns texts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from eaglelocal.catalog.known_machines import METAL
from eaglelocal.core.costs import NOISY
from eaglelocal.core.run_options import RunOptions
from eaglelocal.planning.candidate import Chosen
from eaglelocal.planning.goals import GOALS
from eaglelocal.planning.machine_spec import name_places
from eaglelocal.planning.model_age import Age
from eaglelocal.planning.plan_search import SearchOutcome

SLOW = 1.5  # times the predicted time of a decode: one published speed in ten is off by more than a fifth


def explain_choice(outcome: SearchOutcome, chosen: Chosen) -> tuple[str, ...]:
    """Return the reasons for the chosen plan, the most important first."""
    candidate = chosen.candidate
    return (
        *_about_goal(outcome, chosen),
        *_about_layers(outcome, chosen),
        *_about_measurement(outcome, chosen),
        *_about_draft(chosen, outcome.options),
        *_about_memory(outcome, chosen),
        *_about_other_drafts(chosen),
        *candidate.option.notes,
        *outcome.machine.notes,
    )


def _about_goal(outcome: SearchOutcome, chosen: Chosen) -> Iterator[str]:
    goal, candidate = GOALS[outcome.options.goal], chosen.candidate
    if not any(each.option.quality_b != candidate.option.quality_b for each in outcome.rejected):
        return  # the model was named, and its file too: the goal decided nothing
    rating = f"rated as {candidate.option.quality_b:.1f} B parameters{age_text(candidate.option.age)}"
    if candidate.prediction.spec_tok_s < goal.pace:
        yield f"{goal.name}: the best compromise, though below the {goal.pace:.0f} tokens/s of this goal; {rating}"
    else:
        yield f"{goal.name}: the best answers expected at {goal.pace:.0f} tokens/s or more; {rating}"


def age_text(age: Age) -> str:
    """Return the effect of the age in words; empty if the model is as old as usual, or of unknown age."""
    if age.worth == 1.0:
        return ""
    return f" of {age.released}, each worth {age.worth:.1f} of {age.usual}"


def _about_layers(outcome: SearchOutcome, chosen: Chosen) -> Iterator[str]:
    """Yield the layers and experts that are not on the GPU, and why."""
    candidate, options = chosen.candidate, outcome.options
    if candidate.offload.is_whole:
        return
    layers = candidate.option.shape.n_layer
    memory = f" ({outcome.machine.assumed}, as assumed)" if outcome.machine.assumed else ""
    if candidate.gpu_layers is not None:
        places = name_places(outcome.machine.gpus)
        why = f"are on the {places}, as asked" if options.gpu_layers is not None else f"fit the {places}"
        on_gpu = f"{candidate.gpu_layers} of {layers + 1} layers {why}"
        yield f"{on_gpu}; the others run from main memory{memory}, prompts slowly"
    if candidate.n_cpu_moe:
        why = ", as asked," if options.n_cpu_moe is not None else ""
        experts = f"the experts of {candidate.n_cpu_moe} of {layers} layers{why}"
        yield f"{experts} run from main memory{memory}, prompts slowly"
    if options.gpu_layers is None and any(gpu.kind == METAL for gpu in outcome.machine.gpus):
        yield "macOS limits the GPU's memory; `sudo sysctl iogpu.wired_limit_mb=N` raises that until a restart"


def _about_measurement(outcome: SearchOutcome, chosen: Chosen) -> Iterator[str]:
    """Yield how to measure again, if the measured costs look as if the machine was busy with something else.

    Where the memory's bandwidth was assumed, or measured while something else ran, the prediction proves nothing.
    """
    prediction, probed = chosen.candidate.prediction, outcome.machine.probed
    bandwidth = probed.cpu.bandwidth if probed is not None else None
    is_sound = probed is None or (bandwidth is not None and not bandwidth.is_disturbed)
    if prediction.slowdown >= SLOW and is_sound:
        what = f"decodes took {prediction.slowdown:.1f} times as long as predicted when they were measured here"
    elif prediction.noise >= NOISY:
        what = f"equal decodes differed by a factor of {math.exp(prediction.noise):.1f} when they were measured here"
    else:
        return
    command = shlex.join(["eaglelocal", "tune", "--target", chosen.candidate.option.reference])
    yield f"{what}: if other programs ran then, `{command}` measures again"


def _about_draft(chosen: Chosen, options: RunOptions) -> Iterator[str]:
    candidate = chosen.candidate
    count, acceptance = candidate.prediction.num_draft_tokens, candidate.draft.acceptance
    if candidate.drafts_nothing and options.names_draft:
        yield "the draft is predicted not to pay, and is used because you named it"
    elif candidate.drafts_nothing:
        yield "the draft is predicted not to pay; it is on this disk, so it is loaded, and drafts where it pays"
    elif acceptance is not None:
        source = "by its reported acceptance" if acceptance.is_reported else "by an assumed acceptance"
        mean = acceptance.tokens(count)
        yield f"{count} draft token{'s pay' if count > 1 else ' pays'} most: acceptance length {mean:.1f}, {source}"
    elif count:
        tokens = f"up to {count} looked-up tokens are" if count > 1 else "1 looked-up token is"
        yield f"{tokens} safe: a step that rejects {'all of them' if count > 1 else 'it'} takes at most twice as long"
    yield from candidate.draft.notes


def _about_other_drafts(chosen: Chosen) -> Iterator[str]:
    """Yield the reasons why drafts cannot be used, if no model drafts."""
    for draft in chosen.candidate.option.unusable if chosen.candidate.draft.shape is None else ():
        yield f"not {draft.id}: {draft.reason}"


def _about_memory(outcome: SearchOutcome, chosen: Chosen) -> Iterator[str]:
    candidate, options = chosen.candidate, outcome.options
    if options.kv_type is not None:
        yield f"the cache is {candidate.setup.kv_type}, as asked"
    elif candidate.setup.kv_type != "f16":
        yield f"the cache is {candidate.setup.kv_type}, which makes room for {candidate.setup.n_ctx} tokens"
    if not candidate.setup.swa_full and candidate.option.shape.has_windows:
        yield "layers with a window keep only that: a chat that branches is read again"
