"""The source of the model picker: the models on this disk, and how each would run with these settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from eaglelocal.cli.load_model import count_slots, make_run_options
from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.session import ActiveModel, ModelChoice
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.planning.model_choices import ModelOutlook
    from eaglelocal.tui.chat.model_source import ModelSource


def make_model_source(settings: Settings) -> ModelSource:
    from eaglelocal.planning.model_choices import list_choices
    from eaglelocal.tui.chat.model_source import ModelSource

    return ModelSource(
        list_entries=partial(list_choices, settings.model_folders),
        list_names=partial(list_model_names, settings),
        assess=partial(assess_choice, settings),
    )


def list_model_names(settings: Settings) -> Sequence[str]:
    """Return the references of the models on this disk, for completion."""
    from eaglelocal.planning.model_choices import list_names

    return list_names(settings.model_folders)


def mention_model(prompt: str | None, settings: Settings, output: MessageOutput) -> None:
    """Say how to chat with a model whose name was given as the question, as `ollama run NAME` takes it."""
    words = (prompt or "").split()
    if len(words) != 1 or settings.origins()["target"].startswith("--") or settings.url is not None:
        return
    name = words[0].lower()
    if not {name, f"{name}:latest"}.isdisjoint(known.lower() for known in list_model_names(settings)):
        command = shlex.join(["eaglelocal", "chat", "--target", words[0]])
        output.note(f"{words[0]!r} is taken as a question; for the model of this name: {command}")


def assess_choice(settings: Settings, choice: ModelChoice, active: ActiveModel | None) -> ModelOutlook:
    """Return how the model of a choice would run here, once the active one is unloaded."""
    from eaglelocal.planning.model_choices import assess_model, estimate_held

    options = make_run_options(settings, replace(choice, spec=None), parallel=count_slots(settings))
    held = () if active is None or active.plan is None else estimate_held(active.plan, active.info)
    return assess_model(options, freed=held)
