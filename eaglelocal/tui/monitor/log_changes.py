"""Describe changes between two readings that are worth a log line: states, restarts, models, drafting. Pure."""

from __future__ import annotations

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading


def noticed(before: ServerReading | None, now: ServerReading) -> list[str]:
    """Return a sentence for each change, in the order to log them."""
    said = []
    if before is None or before.state != now.state:
        said.append(_state(before, now))
    if before is not None and DISCONNECTED not in (before.state, now.state):
        if before.restarts is not None and now.restarts is not None and now.restarts > before.restarts:
            said.append(f"the engine was started anew ({now.restarts} so far)")
        said += _models(before, now)
        if before.model == now.model:  # of several loaded models, not always the same is reported
            said += _drafting(before, now)
    if now.missing and (before is None or before.missing != now.missing):
        said.append(f"started with {' '.join(now.missing)}, {now.kind} would tell more")
    return said


def _state(before: ServerReading | None, now: ServerReading) -> str:
    because = f": {now.detail}" if now.detail else ""
    if now.state == DISCONNECTED:
        return now.detail or "no connection"
    again = " again" if before is not None and before.state == DISCONNECTED else ""
    return f"{now.kind} is {now.state}{again}{because if now.state == 'failed' else ''}"


def _models(before: ServerReading, now: ServerReading) -> list[str]:
    if not (before.models and now.models):
        return []
    come = [name for name in now.models if name not in before.models]
    gone = [name for name in before.models if name not in now.models]
    if come == list(now.models) and len(come) == 1:
        return [f"the model is now {now.model}"]
    return [f"{name} was unloaded" for name in gone] + [f"{name} was loaded" for name in come]


def _drafting(before: ServerReading, now: ServerReading) -> list[str]:
    said = []
    if before.drafting.setting and now.drafting.setting not in ("", before.drafting.setting):
        said.append(f"drafting was set to {now.drafting.setting}")
    if before.drafting.state != now.drafting.state and now.drafting.state and before.drafting.state:
        because = f": {now.drafting.reason}" if now.drafting.reason else ""
        said.append(f"speculation is {now.drafting.state}{because}")
    return said
