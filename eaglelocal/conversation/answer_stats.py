"""The statistics of answers as text and JSON: the line below an answer, the totals of /stats, the model lines.

Pure: engine events in, text and plain dicts out. Terms are defined in ARCHITECTURE.md. Every figure was
measured by the engine, except the gain, which is marked as estimated.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.core.events import EngineInfo, EngineSnapshot, Finished
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import DraftPolicy, Spec
from eaglelocal.core.sampling import sampling_text
from eaglelocal.core.stats import SpeculationStats, encode_stats, sum_stats

BAR_CELLS = 20


def model_lines(info: EngineInfo, plan: Plan | None) -> list[str]:
    """Return lines on the model: target, draft with its length or why there is none, images, context, sampling.

    plan None: the model is at a server.
    """
    lines = [f"target   {info.target}"]
    if plan is None:
        return [*lines, *_server_lines(info)]
    if plan.speculates:
        lines.append(f"draft    {info.draft}, {describe_draft_length(plan.spec)}")
    else:
        lines.append(f"draft    none: {_no_draft_reason(info, plan)}")
    if info.sees_images and plan.projector is not None:
        lines.append(f"images   read with {plan.projector.name}")
    lines.append(f"context  {info.n_ctx} tokens, {_count(info.threads, 'thread')}, loaded in {info.load_s:.1f} s")
    if info.sampling:
        lines.append(f"sampling {sampling_text(info.sampling)}, the recommendation of its makers, unless set otherwise")
    return [*lines, *(f"note     {note}" for note in info.notes)]


def _server_lines(info: EngineInfo) -> list[str]:
    """Return the lines on a model at a server, which may report little."""
    draft = info.draft if info.draft != "none" or not info.draft_reason else info.draft_reason
    context = [f"context  {info.n_ctx} tokens"] if info.n_ctx else []
    return [f"draft    {draft}", *context, f"server   {info.library}"]


def model_line(info: EngineInfo, plan: Plan) -> str:
    """Return target, draft and context in one line."""
    draft = (
        f"{info.draft}, {describe_draft_length(plan.spec)}"
        if plan.speculates
        else f"no draft: {_no_draft_reason(info, plan)}"
    )
    images = " · reads images" if info.sees_images else ""
    return f"{info.target} · {draft} · context {info.n_ctx}{images}"


def describe_draft_length(spec: Spec) -> str:
    """Return the draft length in words, such as `4 tokens ahead`."""
    match spec.drafting:
        case DraftPolicy.FIXED:
            return f"{_count(spec.num_draft_tokens, 'token')} ahead"
        case DraftPolicy.PID:
            return "a length that a PID controller sets"
        case _:
            return "as much as pays"


def _no_draft_reason(info: EngineInfo, plan: Plan) -> str:
    return info.draft_reason or plan.draft_reason or "switched off"


def statistics_line(finished: Finished) -> str:
    """Return the line of statistics shown after each answer.

    `41.2 tok/s · acceptance length 3.12 · 74/118 drafted accepted · first token 0.21 s · 1.64x plain (estimated)`
    """
    timings, speculation = finished.timings, finished.speculation
    parts = [f"{timings.decode_tok_s:.1f} tok/s"] if finished.completion_tokens > 1 else []
    first_token = [f"first token {timings.ttft_s:.2f} s"] if finished.completion_tokens else []
    if speculation.drafts:
        gain = speculation.speedup_estimate
        parts += [
            f"acceptance length {speculation.acceptance_length:.2f}",
            f"{speculation.accepted_tokens}/{speculation.draft_tokens} drafted accepted",
            *first_token,
            "gain not measured" if gain is None else f"{gain:.2f}x plain (estimated)",
        ]
    else:
        parts += first_token
    parts += _format_state(speculation)
    return " · ".join([*parts, *_format_ending(finished)])


def _format_state(speculation: SpeculationStats) -> list[str]:
    if speculation.state == "on":
        return [] if speculation.drafts else ["speculation on: nothing was drafted"]
    return [f"speculation {speculation.state}: {speculation.reason or 'no reason given'}"]


def _format_ending(finished: Finished) -> list[str]:
    match finished.reason:
        case "stop":
            return []
        case "length":
            return [f"cut at {_count(finished.completion_tokens, 'token')}"]
        case "cancelled":
            return ["stopped"]
        case reason:
            return [reason]


def answer_object(text: str, finished: Finished, info: EngineInfo, *, reasoning: str = "") -> dict[str, object]:
    """Return the JSON object that `chat --json` prints last; it has `reasoning` only if the model produced any."""
    timings = finished.timings
    return {
        "text": text,
        **({"reasoning": reasoning} if reasoning else {}),
        "finish_reason": finished.reason,
        "target": info.target,
        "draft": info.draft,
        "usage": {"prompt_tokens": finished.prompt_tokens, "completion_tokens": finished.completion_tokens},
        "timings": {
            "ttft_s": timings.ttft_s,
            "decode_tok_s": timings.decode_tok_s,
            "draft_s": timings.draft_s,
            "verify_s": timings.verify_s,
            "host_s": timings.host_s,
        },
        "speculation": encode_stats(finished.speculation),
    }


def total_lines(answers: Sequence[Finished], snapshot: EngineSnapshot, restarts: int) -> list[str]:
    """Return the lines of `/stats`: this session's answers, acceptance by position, the engine's steps and memory."""
    return [*_answer_lines(answers), *_position_lines(answers), *_engine_lines(snapshot, restarts)]


def _answer_lines(answers: Sequence[Finished]) -> list[str]:
    if not answers:
        return ["no answers yet"]
    tokens = sum(answer.completion_tokens for answer in answers)
    after_first = sum(max(0, answer.completion_tokens - 1) for answer in answers)
    decode_s = sum(answer.timings.decode_s for answer in answers)
    speed = f", {after_first / decode_s:.1f} tok/s" if decode_s else ""
    total = sum_stats([answer.speculation for answer in answers])
    lines = [f"answers       {len(answers)}, {_count(tokens, 'token')}{speed}"]
    if not total.drafts:
        return [*lines, f"speculation   {answers[-1].speculation.state}: {answers[-1].speculation.reason}"]
    return [
        *lines,
        f"drafted       {total.draft_tokens} in {_count(total.drafts, 'draft')}, {total.accepted_tokens} accepted, "
        f"{total.draft_tokens - total.accepted_tokens} wasted",
        f"acceptance    length {total.acceptance_length:.2f}, rate {total.acceptance_rate:.0%}",
    ]


def _position_lines(answers: Sequence[Finished]) -> list[str]:
    """Return a bar for each draft position: the share of drafts that were accepted at least that far."""
    total = sum_stats([answer.speculation for answer in answers])
    shares = [count / total.drafts for count in total.accepted_per_position] if total.drafts else []
    return [
        f"position {depth:<2}   {'█' * round(share * BAR_CELLS):<{BAR_CELLS}} {share:4.0%}"
        for depth, share in enumerate(shares, 1)
    ]


def _engine_lines(snapshot: EngineSnapshot, restarts: int) -> list[str]:
    if not snapshot.peak_rss_bytes:  # the server does not report it
        return []
    busy_s = snapshot.host_s + snapshot.native_s
    share = f", {snapshot.host_s / busy_s:.1%} of the time outside llama.cpp" if busy_s else ""
    restarted = f", restarted {_count(restarts, 'time')}" if restarts else ""
    return [
        f"engine        {_count(snapshot.steps, 'step')}{share}",
        f"memory        {snapshot.peak_rss_bytes / 2**20:.0f} MiB at most{restarted}",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
