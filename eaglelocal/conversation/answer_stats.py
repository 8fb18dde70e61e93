"""The statistics of answers as text and JSON: the line below an answer, the totals of /stats, the model lines.

Pure: engine events in, text and plain dicts out. Terms are defined in ARCHITECTURE.md. Every figure was
measured by the engine, except the gain, which is marked as estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from eaglelocal.conversation.conversation import ContextUse, ToolRound
from eaglelocal.core.adapters import describe_adapters
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.draft import SWITCHED_OFF, describe_drafting
from eaglelocal.core.events import EngineInfo, EngineSnapshot, Finished, LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import MAX_DRAFT_TOKENS, DraftPolicy, Spec
from eaglelocal.core.sampling import sampling_text
from eaglelocal.core.stats import SpeculationStats, encode_stats, sum_stats

MAX_SYSTEM_CHARS = 60  # shown of a system message
MAX_POSITIONS = 8  # of drafts, in the line of /stats
FULL_MARGIN = 2  # tokens of the context that the end of an answer may leave unused


def model_lines(info: EngineInfo, plan: Plan | None) -> list[str]:
    """Return lines on the model: target, adapters, draft or why there is none, images, context, sampling.

    plan None: the model is at a server.
    """
    lines = [f"target   {info.target}"]
    if info.adapters:
        lines.append(f"adapters {describe_adapters(info.adapters)}")
    if plan is None:
        return [*lines, *_server_lines(info)]
    lines.append(f"draft    {_describe_draft(info, plan, without='none')}")
    if info.sees_images and plan.projector is not None:
        lines.append(f"images   read with {plan.projector.name}")
    lines.append(f"context  {info.n_ctx} tokens, {count_noun(info.threads, 'thread')}, loaded in {info.load_s:.1f} s")
    if info.sampling:
        lines.append(f"sampling {sampling_text(info.sampling)}, the recommendation of its makers, unless set otherwise")
    return [*lines, *(f"note     {note}" for note in info.notes)]


def unusual_lines(info: EngineInfo, plan: Plan | None) -> list[str]:
    """Return what is unusual about a model: notes, and why nothing drafts, unless that is a setting."""
    reason = info.draft_reason or ("" if plan is None or plan.speculates else plan.draft_reason)
    is_plain = info.draft == "none" and reason and reason != SWITCHED_OFF
    return [*([f"no draft: {reason}"] if is_plain else []), *info.notes]


def _server_lines(info: EngineInfo) -> list[str]:
    draft = info.draft if info.draft != "none" or not info.draft_reason else info.draft_reason
    context = [f"context  {info.n_ctx} tokens"] if info.n_ctx else []
    return [f"draft    {draft}", *context, f"server   {info.library}"]


def system_line(system: str) -> str:
    """Return the beginning of a system message that is set, and how to remove it."""
    short = " ".join(system.split())
    shown = short if len(short) <= MAX_SYSTEM_CHARS else f"{short[:MAX_SYSTEM_CHARS].rstrip()}..."
    return f'system   {shown}  (a system message is set; /system "" removes it)'


def model_line(info: EngineInfo, plan: Plan) -> str:
    """Return target, adapters, draft and context in one line."""
    draft = _describe_draft(info, plan, without="no draft")
    images = " · reads images" if info.sees_images else ""
    adapters = f" · LoRA {describe_adapters(info.adapters)}" if info.adapters else ""
    return f"{info.target}{adapters} · {draft} · context {info.n_ctx}{images}"


def describe_draft_length(spec: Spec, most: int) -> str:
    """Return the draft length in words, such as `4 tokens ahead`. `most`: that can be drafted; 0: not known."""
    match spec.drafting:
        case DraftPolicy.FIXED:
            return f"{count_noun(min(spec.num_draft_tokens, most or MAX_DRAFT_TOKENS), 'token')} ahead"
        case DraftPolicy.PID:
            return "a length that a PID controller sets"
        case _:
            return "automatic"


def _describe_draft(info: EngineInfo, plan: Plan, *, without: str) -> str:
    if plan.speculates:
        return f"{info.draft}, {describe_draft_length(plan.spec, info.max_draft)}"
    reason = info.draft_reason or plan.draft_reason or SWITCHED_OFF
    return f"{without}: {'your setting' if reason == SWITCHED_OFF else reason}"


def answer_line(finished: Finished, n_ctx: int = 0) -> str:
    """Return `87 tokens · 4.1 s`, for a screen that shows speeds elsewhere; n_ctx as in `statistics_line`."""
    timings = finished.timings
    seconds = [f"{timings.ttft_s + timings.decode_s:.1f} s"] if finished.completion_tokens else []
    return " · ".join([*_count_tokens(finished), *seconds, *format_ending(finished, n_ctx)])


def _count_tokens(finished: Finished) -> list[str]:
    """Return the tokens of an answer, which the reason for its end may name too."""
    is_named = finished.reason == "length" or not finished.completion_tokens
    return [] if is_named else [describe_tokens(finished)]


def describe_tokens(*answers: Finished) -> str:
    """Return `87 tokens`, or `87 tokens (31 thinking)`."""
    thinking = sum(answer.reasoning_tokens for answer in answers)
    said = count_noun(sum(answer.completion_tokens for answer in answers), "token")
    return f"{said} ({thinking} thinking)" if thinking else said


def statistics_line(finished: Finished, n_ctx: int = 0) -> str:
    """Return the line of figures shown after each answer; n_ctx: tokens of the context, 0 if unknown.

    `87 tokens · 41.2 tok/s · 1.64x plain (estimated) · first token 0.21 s`. More is in `/stats` and in the panel.
    """
    timings, speculation = finished.timings, finished.speculation
    parts = _count_tokens(finished)
    parts += [f"{timings.decode_tok_s:.1f} tok/s"] if finished.completion_tokens > 1 and timings.decode_tok_s else []
    if speculation.drafts and speculation.speedup_estimate is not None:
        parts.append(f"{speculation.speedup_estimate:.2f}x plain (estimated)")
    parts += [f"first token {timings.ttft_s:.2f} s"] if finished.completion_tokens else []
    return " · ".join([*parts, *format_ending(finished, n_ctx)])


def _format_state(speculation: SpeculationStats) -> list[str]:
    if speculation.state == "on":
        return [] if speculation.drafts else ["nothing was drafted"]
    return list(filter(None, [describe_drafting(speculation.state, speculation.reason)]))


def format_ending(finished: Finished, n_ctx: int = 0) -> list[str]:
    """Return why an answer ended, in a list; an empty one if it is complete. n_ctx as in `statistics_line`."""
    match finished.reason:
        case "stop":
            return []
        case "length":
            num_used = finished.prompt_tokens + finished.completion_tokens
            why = f": the context of {n_ctx} tokens is full" if 0 < n_ctx <= num_used + FULL_MARGIN else ""
            return [f"cut at {count_noun(finished.completion_tokens, 'token')}{why}"]
        case "cancelled":
            return ["stopped"]
        case reason:
            return [reason]


def answer_object(
    text: str,
    finished: Finished,
    info: EngineInfo,
    *,
    reasoning: str = "",
    is_loop: bool = False,
    rounds: Sequence[ToolRound] = (),
) -> dict[str, object]:
    """Return the JSON object that `chat --json` prints last; reasoning, loop and calls only if there are any."""
    timings = finished.timings
    calls = [
        {"tool": done.label, "arguments": done.call.arguments, "state": done.state, "result": done.result}
        for each in rounds
        for done in each.calls
    ]
    return {
        "text": text,
        **({"reasoning": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
        "finish_reason": "stop" if is_loop else finished.reason,
        **({"is_loop": True} if is_loop else {}),
        "target": info.target,
        "draft": info.draft,
        "usage": {
            "prompt_tokens": finished.prompt_tokens,
            "completion_tokens": finished.completion_tokens,
            "reasoning_tokens": finished.reasoning_tokens,
        },
        "timings": {
            "ttft_s": timings.ttft_s,
            "decode_tok_s": timings.decode_tok_s,
            "draft_s": timings.draft_s,
            "verify_s": timings.verify_s,
            "host_s": timings.host_s,
        },
        "speculation": encode_stats(finished.speculation),
    }


def total_lines(answers: Sequence[Finished], snapshot: EngineSnapshot, restarts: int, context: ContextUse) -> list[str]:
    """Return the lines of `/stats`: this session's answers, the context, the engine's steps and memory."""
    return [
        *_answer_lines(answers),
        *_position_lines(answers),
        *_context_lines(context),
        *_engine_lines(snapshot, restarts),
    ]


def _context_lines(context: ContextUse) -> list[str]:
    if not context.size or not context.used:
        return []
    used = f"{'' if context.is_counted else 'about '}{context.used}"
    return [f"context       {used} of {context.size} tokens, {context.share:.0%} full"]


def _answer_lines(answers: Sequence[Finished]) -> list[str]:
    if not answers:
        return ["no answers yet"]
    timed = [answer for answer in answers if answer.timings.decode_tok_s]
    after_first = sum(max(0, answer.completion_tokens - 1) for answer in timed)
    decode_s = sum(answer.timings.decode_s for answer in timed)
    speed = f", {after_first / decode_s:.1f} tok/s" if decode_s else ""
    total = sum_stats([answer.speculation for answer in answers])
    lines = [f"answers       {len(answers)}, {describe_tokens(*answers)}{speed}"]
    if not total.drafts:
        return [*lines, *(f"drafting      {text}" for text in _format_state(answers[-1].speculation))]
    return [
        *lines,
        f"drafted       {total.draft_tokens} in {count_noun(total.drafts, 'draft')}, "
        f"{total.accepted_tokens} accepted, {total.draft_tokens - total.accepted_tokens} wasted",
        f"acceptance    length {total.acceptance_length:.2f}, rate {total.acceptance_rate:.0%}",
    ]


def _position_lines(answers: Sequence[Finished]) -> list[str]:
    """Return the shares of drafts that were accepted at least so far, for the first positions, in a line."""
    total = sum_stats([answer.speculation for answer in answers])
    shares = [count / total.drafts for count in total.accepted_per_position] if total.drafts else []
    more = " ..." if len(shares) > MAX_POSITIONS else ""
    return [f"by position   {' '.join(f'{share:.0%}' for share in shares[:MAX_POSITIONS])}{more}"] if shares else []


def _engine_lines(snapshot: EngineSnapshot, restarts: int) -> list[str]:
    if not snapshot.peak_rss_bytes:  # the server does not report it
        return []
    busy_s = snapshot.host_s + snapshot.native_s
    share = f", {snapshot.host_s / busy_s:.1%} of the time outside llama.cpp" if busy_s else ""
    restarted = f", restarted {count_noun(restarts, 'time')}" if restarts else ""
    return [
        f"engine        {count_noun(snapshot.steps, 'step')}{share}",
        f"memory        {snapshot.peak_rss_bytes / 2**20:.0f} MiB at most{restarted}",
    ]


# ---- message output: the interface for messages to the user other than answers: stderr in line mode, the transcript
# on the screen
#
# Code that loads models, joins servers or runs commands writes to it, in both modes.
class ProgressBar(Protocol):
    """A progress bar of one operation."""

    def __call__(self, progress: LoadProgress) -> None: ...

    def finish(self) -> None:
        """Remove the bar; later progress is not shown."""


class MessageOutput(Protocol):
    """An output for messages, such as `cli.output.Output`."""

    def message(self, text: str = "") -> None:
        """Show a line that the user asked for."""

    def note(self, text: str) -> None:
        """Show a dimmed line."""

    def progress(self) -> ProgressBar: ...
