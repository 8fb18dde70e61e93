"""The models that the chat screen offers by name: those on this disk, in the catalog, and opened by their paths."""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.conversation.slash_commands import Command
from eaglelocal.preparation.model_choices import ModelChoiceEntry
from eaglelocal.tui.chat.chat_events import ModelChanged
from eaglelocal.tui.chat.model_picker import OPENED, ModelSource


class OfferedModels:
    """The references that `/model` completes and loads, and the models that were opened by their paths in this chat."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.catalog_names: Sequence[str] = ()  # until they are read
        self._opened: dict[str, ModelChoiceEntry] = {}

    def read_catalog_names(self) -> None:
        """Read the names of the catalog, on a thread: it takes a moment."""
        self.catalog_names = self.source.list_known()

    def add(self, changed: ModelChanged) -> None:
        """Keep a model that was opened by its path; ignore another one."""
        plan, reference = changed.model.plan, changed.reference
        if plan is not None and reference.endswith(".gguf"):
            size_bytes = plan.target.stat().st_size if plan.target.exists() else 0
            self._opened[reference] = ModelChoiceEntry(reference, size_bytes, OPENED)

    @property
    def opened(self) -> tuple[ModelChoiceEntry, ...]:
        return tuple(self._opened.values())

    def list_references(self) -> list[str]:
        """Return the references that `/model` completes: opened files, models on this disk, and the catalog."""
        return list(dict.fromkeys([*self._opened, *self.source.list_names(), *self.catalog_names]))

    def find_search(self, command: Command) -> str | None:
        """Return what `/model TEXT` searches for in the picker; None for other commands and for a reference.

        The picker has fields for what flags say.
        """
        name = command.argument.partition(" --")[0]
        is_path = "/" in name or "@" in name or name.endswith(".gguf")
        return None if command.name != "/model" or is_path or name in self.source.list_names() else name
