"""Describe changes between two readings that are worth a log line: states, restarts, models, drafting. Pure."""

from __future__ import annotations

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading


def describe_changes(before: ServerReading | None, now: ServerReading) -> list[str]:
    """Return a sentence for each change, in the order to log them."""
    sentences = []
    if before is None or before.state != now.state:
        sentences.append(_describe_state(before, now))
    if before is not None and DISCONNECTED not in (before.state, now.state):
        if before.restarts is not None and now.restarts is not None and now.restarts > before.restarts:
            sentences.append(f"the engine has restarted ({now.restarts} so far)")
        sentences += _describe_models(before, now)
        if before.model == now.model:  # of several loaded models, not always the same is reported
            sentences += _describe_drafting(before, now)
    if now.missing and (before is None or before.missing != now.missing):
        sentences.append(explain_missing(now))
    return sentences


def explain_missing(reading: ServerReading) -> str:
    """Return which of the server's flags would make it report more."""
    return f"{reading.kind} reports more when started with {' '.join(reading.missing)}"


def _describe_state(before: ServerReading | None, now: ServerReading) -> str:
    reason = f": {now.detail}" if now.detail else ""
    if now.state == DISCONNECTED:
        return now.detail or "no connection"
    again = " again" if before is not None and before.state == DISCONNECTED else ""
    return f"{now.kind} is {now.state}{again}{reason if now.state == 'failed' else ''}"


def _describe_models(before: ServerReading, now: ServerReading) -> list[str]:
    if not (before.models and now.models):
        return []
    loaded = [name for name in now.models if name not in before.models]
    unloaded = [name for name in before.models if name not in now.models]
    if loaded == list(now.models) and len(loaded) == 1:
        return [f"the model is now {now.model}"]
    return [f"{name} was unloaded" for name in unloaded] + [f"{name} was loaded" for name in loaded]


def _describe_drafting(before: ServerReading, now: ServerReading) -> list[str]:
    sentences = []
    if before.drafting.setting and now.drafting.setting not in ("", before.drafting.setting):
        sentences.append(f"drafting was set to {now.drafting.setting}")
    if before.drafting.state != now.drafting.state and now.drafting.state and before.drafting.state:
        reason = f": {now.drafting.reason}" if now.drafting.reason else ""
        sentences.append(f"speculation is {now.drafting.state}{reason}")
    return sentences
