"""Passes answers to the watch over drifts: kind of text, acceptance, and the conditions that it depends on.

Of texts only hashes are kept, and only of system prompts, to say that one has changed.
"""

from __future__ import annotations

import hashlib

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.learning.drift_files import DriftWatch
from eaglelocal.learning.text_kinds import KINDS, guess_kind
from eaglelocal.server.answer_state import AnswerState


def watch_drift(watch: DriftWatch, info: EngineInfo, choice: AnswerState) -> None:
    """Add an answer that is complete; one without drafts says nothing."""
    request, finished = choice.request, choice.finished
    if finished is None or not finished.speculation.drafts or not isinstance(request, ChatRequest):
        return
    stats = finished.speculation
    accepted = next(iter(stats.accepted_per_position), 0)
    kind = KINDS[guess_kind(choice.opening, has_calls=choice.has_calls)]
    conditions = {  # what acceptance depends on besides the kind of text, by the names that people are shown
        "model file": info.weights,
        "draft": info.draft,
        "template": hash_text(info.template),
        "system prompt": choice.system_hash,
        "draft length": "" if request.spec is None else str(request.spec),
    }
    watch.add(info.target, kind, stats.drafts, accepted, conditions)


def hash_system_prompt(request: AnyRequest) -> str:
    """Return a hash of a request's system messages; empty if there are none."""
    if not isinstance(request, ChatRequest):
        return ""
    return hash_text("\n".join(message.content for message in request.messages if message.role == "system"))


def hash_text(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest() if text else ""
