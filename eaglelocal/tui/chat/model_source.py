"""The interface through which the chat screen asks for the models on this disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eaglelocal.conversation.session import ActiveModel, ModelChoice
from eaglelocal.core.records import dataclass
from eaglelocal.planning.model_choices import ModelChoiceEntry, ModelOutlook


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The functions that list and assess the models on this disk.

    list_entries  all models that can answer; reads headers
    list_names    their references, for completion; quick
    assess        how a model would run here with the choice's options; the active model is unloaded for it
    """

    list_entries: Callable[[], Sequence[ModelChoiceEntry]] = lambda: ()
    list_names: Callable[[], Sequence[str]] = lambda: ()
    assess: Callable[[ModelChoice, ActiveModel | None], ModelOutlook] = lambda choice, active: ModelOutlook(fits=True)


NO_MODELS = ModelSource()
