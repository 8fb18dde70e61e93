"""The slash commands on the model of a chat: /model, /draft, /spec and /lora."""

from __future__ import annotations

from dataclasses import replace

from eaglelocal.conversation.action_context import ActionContext
from eaglelocal.conversation.answer_stats import describe_draft_length, model_lines
from eaglelocal.conversation.session import ModelChoice, Session
from eaglelocal.conversation.spelling import closest_word
from eaglelocal.core.adapters import describe_adapters, parse_scale
from eaglelocal.core.drafting_words import SWITCHED_OFF, describe_cut_length, describe_drafting
from eaglelocal.core.request import AUTO, OFF, Spec, parse_spec
from eaglelocal.errors import UsageError

LORA_HINT = "/lora 0 0.5; /lora 0 0 switches adapter 0 off"
SPEC_HINT = "/spec auto, /spec off, /spec pid or /spec N"


def choose_draft_length(context: ActionContext, argument: str) -> None:
    """Show how many tokens are drafted, after setting it."""
    if argument:
        _choose_spec(context, parse_spec_argument(argument))
    context.say(_spec_line(context.session))


def parse_spec_argument(argument: str) -> Spec:
    """Parse the argument of `/spec`; `on` means auto. Raises UsageError."""
    try:
        return AUTO if argument == "on" else parse_spec(argument)
    except UsageError as problem:
        raise UsageError(problem.message.replace("--spec", "/spec"), hint=SPEC_HINT) from None


def _choose_spec(context: ActionContext, spec: Spec) -> None:
    """Set the spec of the next requests; load the model again if it was loaded without a draft. Raises UsageError."""
    session = context.session
    if not session.model.takes_spec:
        raise UsageError("this server does not take /spec", hint="/model demo loads a model on this machine")
    if spec != OFF and session.model.plan is not None and not session.model.speculates:
        _load(context, replace(session.choice, spec=str(spec)))
    session.spec = spec


def _spec_line(session: Session) -> str:
    plan = session.model.plan
    if plan is None and session.spec is None:
        return "drafting: set by the server"
    spec = session.spec or (AUTO if plan is None else plan.spec)
    if spec == OFF:
        return describe_drafting("off", SWITCHED_OFF)
    most = session.model.info.max_draft
    cut = describe_cut_length(spec.num_draft_tokens, most)
    length = describe_draft_length(spec, most) + (f" ({cut})" if cut else "")
    if plan is None:
        return f"drafting, as requested from the server: {length}"
    if not plan.speculates:
        reason = session.model.info.draft_reason or plan.draft_reason
        return describe_drafting("off", reason or "no draft is loaded")
    return f"drafting: {length}, {session.model.info.draft}"


def choose_draft(context: ActionContext, argument: str) -> None:
    """Show the draft, or load the model with another one."""
    if argument:
        return _load(context, replace(context.session.choice, draft=argument))
    return context.say(_spec_line(context.session))


def choose_scale(context: ActionContext, argument: str) -> None:
    """Show the LoRA adapters, after setting the scale of one: `0 0.5`."""
    session = context.session
    if argument:
        try:
            session.set_scale(*parse_scale(argument))
        except ValueError as problem:
            hint = LORA_HINT if session.model.info.adapters else "eaglelocal chat --lora FILE"
            raise UsageError(f"/lora {argument}: {problem}", hint=hint) from None
    shown = session.shown_adapters
    context.say(f"adapters: {describe_adapters(shown)}" if shown else "no adapter is loaded: --lora FILE loads one")


def choose_model(context: ActionContext, argument: str) -> None:
    """Show the model and those on this disk, or load another one."""
    session = context.session
    if argument:
        before = session.choice
        choice, adapters = before.retarget(argument, session.model.local_name), session.model.info.adapters
        try:
            _load(context, choice)
        except UsageError as error:
            raise UsageError(error.message, hint=_suggest_model(context, argument, error.hint)) from error
        if adapters and not session.model.info.adapters:
            context.say("note     the adapters belong to the model before, and are not loaded")
        if before.ctx != choice.ctx:
            context.say(f"note     the context of {before.ctx} tokens was chosen for the model before")
    else:
        context.say(*model_lines(session.model.info, session.model.plan))
        if names := context.list_models():
            context.say("on disk  " + ", ".join(names))


def _suggest_model(context: ActionContext, name: str, hint: str) -> str:
    """Return the hint for a model that is not found: the models on this disk with nearly that name, or where to look.

    hint: that of the error, for a model that cannot run.
    """
    known = context.list_models()
    if name in known:
        return hint
    near = [each for each in known if name.lower() in each.lower()] or list(filter(None, [closest_word(name, known)]))
    names = " or ".join(f"/model {each}" for each in near[:3])
    return names or f"{hint}; `eaglelocal ls` lists the models on this disk".removeprefix("; ")


def _load(context: ActionContext, choice: ModelChoice) -> None:
    context.session.switch(choice)
    context.say(*model_lines(context.session.model.info, context.session.model.plan))
