"""The model picker: the models on this disk and in the catalog, how each would run here, and a form for its options.

One dialog for F5 and `/model`. A `ModelSource` lists and plans the models on threads, and rows appear as they come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.signal import Signal
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from eaglelocal.conversation.command_arguments import list_paths
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.amounts import format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import parse_spec
from eaglelocal.core.run_options import ModelChoice, parse_kv_type
from eaglelocal.core.spelling import has_words
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.preparation.model_choices import CatalogChoice, ModelChoiceEntry, ModelPreview, describe_choice
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_dialogs import Dialog, ListSearch
from eaglelocal.tui.chat.chat_events import ModelChanged
from eaglelocal.tui.chat.model_download import PullModel
from eaglelocal.tui.panel.panel_text import format_tok_s

MAX_CTX_DIGITS = 9
NAME_WIDTH, SIZE_WIDTH, SPEED_WIDTH, FIT_WIDTH = 28, 8, 12, 12  # columns
MIN_NAME_WIDTH, OTHER_WIDTH = 10, 52  # of the columns beside the name, the dialog's border and a scrollbar
HEADING = f"{'size':>{SIZE_WIDTH}}  {'predicted':<{SPEED_WIDTH}}{'here':<{FIT_WIDTH}}from"
DOWNLOAD = "download"  # the place of a model that is not on this disk
RUNNING, OPENED = "running", "a path"  # instead of a place: the model that runs, one that was opened by its path
HOW_TO_LOAD = "enter loads what is typed: a path of a GGUF file (right completes it), or OWNER/REPO of the hub"
BATCH_S = 0.2  # between two additions of planned rows to the list
SETTLE_S = 0.3  # after the last key in the form, until the models are assessed again
ASSESSING, CATALOG = "assessing", "catalog"  # groups of workers
PENDING, FITS, SPLIT, TOO_LARGE = "", "fits", "fits partly", "cannot run"


@dataclass(slots=True)
class PickerRows:
    """The rows of the list: the models that match the search, and their previews so far."""

    entries: Sequence[ModelChoiceEntry] = ()
    previews: dict[str, ModelPreview] = field(default_factory=dict)

    def match(self, typed: str) -> list[ModelChoiceEntry]:
        """Return the entries that contain every word: an exact name first, then those on disk, then the best.

        Downloads that cannot run are last.
        """
        found = [entry for entry in self.entries if has_words(entry.reference, typed)]
        return sorted(found, key=lambda entry: (entry.reference.lower() != typed.lower(), *self._rank(entry)))

    def _rank(self, entry: ModelChoiceEntry) -> tuple[bool, float]:
        preview = self.previews.get(entry.reference)
        is_rated = entry.place == DOWNLOAD and preview is not None and preview.fits
        return self.is_in_vain(entry), -preview.score if is_rated and preview is not None else -math.inf

    def is_in_vain(self, entry: ModelChoiceEntry) -> bool:
        preview = self.previews.get(entry.reference)
        return entry.place == DOWNLOAD and preview is not None and not preview.fits

    def format_row(self, entry: ModelChoiceEntry, width: int, *, is_running: bool = False) -> str:
        """Return the row of a model, whose name has `width` columns."""
        preview = self.previews.get(entry.reference)
        fit = PENDING if preview is None else TOO_LARGE if not preview.fits else SPLIT if preview.note else FITS
        speed = "" if preview is None or preview.tok_s is None else f"{format_tok_s(preview.tok_s)} tok/s"
        name, size = shorten_name(entry.reference, width), format_disk(entry.size_bytes)
        place = RUNNING if is_running else entry.place
        return f"{name:<{width}} {size:>{SIZE_WIDTH}}  {speed:<{SPEED_WIDTH}}{fit:<{FIT_WIDTH}}{place}"


def shorten_name(name: str, width: int) -> str:
    """Return the name in at most `width` columns: of a long one the end, which tells quantizations apart."""
    name = name if len(name) <= width else name.removesuffix(".gguf")
    return name if len(name) <= width else f"..{name[-width + 2 :]}"


def describe_preview(preview: ModelPreview | None) -> str:
    """Return how a model would run, in a line."""
    if preview is None:
        return "..."
    if not preview.fits:
        return preview.problem
    parts = [f"{preview.n_ctx} tokens of context" if preview.n_ctx else "", f"cache {preview.kv_type}", preview.note]
    return f"{', '.join(part for part in parts if part)}; draft: {preview.draft or 'none'}"


class PathSuggester(Suggester):
    """Completes the path of a GGUF file; the right arrow takes what it suggests."""

    async def get_suggestion(self, value: str) -> str | None:
        return next(iter(list_paths("/model", value)), None)


class ModelDialog(Dialog):
    """A list of models to choose from, and a form for draft, draft length, context and cache type."""

    TITLE_TEXT = "Model and draft"
    DEFAULT_CSS = """
    ModelDialog {
        & #box { width: 78; }
        & OptionList, & OptionList:focus { max-height: 8; height: 8; }
        & #heading { color: $text-muted; }
        & #heading, & OptionList { text-wrap: nowrap; text-overflow: clip; }
        & #preview { width: 100%; height: 2; color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "save", "Change", id="save", priority=True)]

    def __init__(
        self,
        changed: ModelChanged | None,
        controller: ChatController,
        source: ModelSource,
        model_changed: Signal[ModelChanged],
        *,
        search: str = "",
        opened: Sequence[ModelChoiceEntry] = (),
    ) -> None:
        """changed: the model that runs; None: none could be loaded. model_changed: published when one was loaded.

        search  what the list is searched for at first
        opened  the models that were opened by their paths in this chat
        """
        super().__init__()
        self._search_text = search
        self._model_changed = model_changed
        self._active = None if changed is None else changed.model
        self._choice = ModelChoice() if changed is None else changed.choice
        self._controller, self._source = controller, source
        self._running_name = "" if self._active is None else self._active.local_name
        self._rows, self._shown = PickerRows(opened), list[ModelChoiceEntry]()
        self._reference = "" if changed is None else changed.reference
        self._has_moved = False  # a row was chosen by key or mouse
        self._is_catalog_whole = False  # all its models are listed
        self._is_searched = False  # the catalog, for what is typed
        self._search_timer: Timer | None = None  # until the catalog is searched for what was typed
        self._timer: Timer | None = None  # until the typed text is taken into account
        self._filled = ("", "")  # draft and context as the form was last filled, to recognize the user's changes

    def compose_box(self) -> ComposeResult:
        yield Label(self._describe_active(), id="active", markup=False)
        hint = "type to search; a reference or a path"
        search = ListSearch(self._search_text, placeholder=hint, id="target", select_on_focus=False)
        search.suggester = PathSuggester(use_cache=False, case_sensitive=True)
        yield search
        yield Label("", id="heading", markup=False)
        yield OptionList(markup=False)
        yield Label("", id="preview", markup=False)
        choice = self._choice
        self._filled = fill_fields(choice)
        for name, label, value, hint in (
            ("draft", "draft", choice.draft or "", "auto, ngram, none, ./head.gguf; empty: no change"),
            ("spec", "draft length", "", "auto, off, pid or a number; empty: no change"),
            ("ctx", "context", str(choice.ctx or ""), "tokens; empty: as planned"),
            ("kv_type", "cache type", choice.kv_type or "", "f16, q8_0; q8_0,q5_1: keys, values; empty: as planned"),
        ):
            yield from self.compose_row(label, value, hint, name)

    def on_mount(self) -> None:
        super().on_mount()
        self._model_changed.subscribe(self, self._show_active)
        self.run_worker(self._read_models, thread=True, exclusive=True)

    def _describe_active(self) -> str:
        if self._active is None:
            return "a model is being loaded" if self._controller.is_busy else "no model is loaded"
        return f"now: {self._active.info.target}, {self._active.info.draft}"

    def _show_active(self, changed: ModelChanged) -> None:
        """Show the model that was loaded meanwhile, and how the others would run once it is unloaded."""
        self._active, self._choice = changed.model, changed.choice
        self._running_name, self._reference = changed.model.local_name, changed.reference
        self.query_one("#active", Label).update(self._describe_active())
        self._start_assessing()

    # ---- the list
    def _read_models(self) -> None:
        """List the models, on a thread."""
        entries: Sequence[ModelChoiceEntry] = ()
        problem = ""
        try:
            entries = self._source.list_entries()
        except (EagleLocalError, OSError) as error:
            problem = str(error)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_entries, entries, problem)

    def _start_assessing(self) -> None:
        if not self.is_open:
            return
        try:
            choices = {
                entry.reference: self._make_choice(entry.reference)
                for entry in self._rows.entries
                if entry.place != DOWNLOAD
            }
        except UsageError:
            return  # `apply` shows it
        self.run_worker(partial(self._assess, choices), thread=True, exclusive=True, group=ASSESSING)

    def _assess(self, choices: Mapping[str, ModelChoice]) -> None:
        worker = get_current_worker()
        for reference, choice in choices.items():
            if worker.is_cancelled:
                return
            preview = self._source.assess(choice, self._active)
            if not worker.is_cancelled:
                self.app.call_from_thread(self._show_preview, reference, preview)

    def _show_entries(self, entries: Sequence[ModelChoiceEntry], problem: str) -> None:
        if self.is_open:
            if problem:
                self.show_error(UsageError(f"the models on this disk cannot be listed: {problem}"))
            known = {entry.reference for entry in entries}
            self._rows.entries = [*entries, *(each for each in self._rows.entries if each.reference not in known)]
            self._refill()
            self._start_assessing()
            self._start_catalog()

    # ---- the catalog
    def _start_catalog(self) -> None:
        """Plan the models of the catalog, on a thread: those that match the search, until all are planned."""
        if self.is_open and not self._is_catalog_whole:
            words = self._read("target").lower().split()
            self.run_worker(partial(self._read_catalog, words), thread=True, exclusive=True, group=CATALOG)

    def _read_catalog(self, words: Sequence[str]) -> None:
        worker, batch, sent_at = get_current_worker(), list[CatalogChoice](), time.monotonic()
        try:
            for choice in self._source.list_catalog(words, self._active):
                if worker.is_cancelled:
                    return
                batch.append(choice)
                if time.monotonic() - sent_at >= BATCH_S:
                    self.app.call_from_thread(self._add_catalog, batch)
                    batch, sent_at = [], time.monotonic()
        except (EagleLocalError, OSError):
            pass  # the models on disk are listed all the same
        if not worker.is_cancelled:
            self.app.call_from_thread(self._add_catalog, batch, is_whole=not words, is_end=True)

    def _add_catalog(self, choices: Sequence[CatalogChoice], *, is_whole: bool = False, is_end: bool = False) -> None:
        """Add rows below the others; those that cannot run only at the end of the search, last."""
        if not self.is_open:
            return
        self._is_catalog_whole = self._is_catalog_whole or is_whole
        self._is_searched = self._is_searched or is_end
        typed, known = self._read("target"), self._rows.previews
        added = [make_entry(each) for each in choices if not each.option.is_here and each.option.reference not in known]
        known |= {each.option.reference: describe_choice(each) for each in choices if not each.option.is_here}
        self._rows.entries = [*self._rows.entries, *added]
        if is_end:
            self._refill_in_place()
        else:
            runnable = (entry for entry in added if not self._rows.is_in_vain(entry))
            shown = [entry for entry in runnable if has_words(entry.reference, typed)]
            self._shown += shown
            self.query_one(OptionList).add_options([Option(self._format(entry)) for entry in shown])
            if self.query_one(OptionList).highlighted is None:
                self._refill_in_place()

    def _refill_in_place(self) -> None:
        """Sort the rows again; the highlighted model stays highlighted."""
        entry, models = self._highlighted, self.query_one(OptionList)
        self._refill()
        if entry is not None and self._has_moved and entry in self._shown:
            with self.prevent(OptionList.OptionHighlighted):
                models.highlighted = self._shown.index(entry)
            self._describe_highlighted()

    def _show_preview(self, reference: str, preview: ModelPreview) -> None:
        if not self.is_open:
            return
        self._rows.previews[reference] = preview
        for index, entry in enumerate(self._shown):
            if entry.reference == reference:
                self.query_one(OptionList).replace_option_prompt_at_index(index, self._format(entry))
        self._describe_highlighted()

    def _refill(self) -> None:
        models = self.query_one(OptionList)
        found = self._rows.match(self.query_one("#target", Input).value.strip())
        self._shown = [each for each in found if self._is_searched or not self._rows.is_in_vain(each)]
        models.clear_options()
        models.add_options([Option(self._format(entry)) for entry in self._shown])
        with self.prevent(OptionList.OptionHighlighted):  # the user has not moved
            models.highlighted = self._choose_row()
        self._describe_highlighted()

    def _choose_row(self) -> int | None:
        """Return the row to select first: the best match of the search, else the model that runs, if it is listed."""
        if self._read("target"):
            return 0 if self._shown else None
        return next((index for index, entry in enumerate(self._shown) if self._is_running(entry.reference)), None)

    def _is_running(self, reference: str) -> bool:
        return self._active is not None and reference in (self._choice.target, self._running_name, self._reference)

    def _describe_highlighted(self) -> None:
        """Show how the highlighted model would run, and in the form the choices made for the model to change to."""
        self._fill_form()
        entry = self._highlighted
        found = "nothing matches" if self._read("target") else "no model is known"
        text = f"{found}; {HOW_TO_LOAD}" if self._is_searched and not self._shown else ""
        text = text if entry is None else describe_preview(self._rows.previews.get(entry.reference))
        if entry is not None and entry.place == DOWNLOAD:
            text = f"enter downloads {format_disk(entry.size_bytes)}; {text}"
        self.query_one("#preview", Label).update(text)

    def _format(self, entry: ModelChoiceEntry) -> str:
        return self._rows.format_row(entry, self._name_width, is_running=self._is_running(entry.reference))

    @property
    def _name_width(self) -> int:
        return min(max(self.app.size.width - OTHER_WIDTH, MIN_NAME_WIDTH), NAME_WIDTH)

    def on_resize(self) -> None:
        if self.is_open:
            self.query_one("#heading", Label).update(f"{'model':<{self._name_width}} {HEADING}")
            self._refill_in_place()

    @property
    def _highlighted(self) -> ModelChoiceEntry | None:
        index = self.query_one(OptionList).highlighted
        return None if index is None or index >= len(self._shown) else self._shown[index]

    @on(Input.Changed, "#target")
    def _search(self) -> None:
        self._has_moved, self._is_searched = False, self._is_catalog_whole
        self._refill()
        if self._search_timer is not None:
            self._search_timer.stop()
        self._search_timer = self.set_timer(SETTLE_S, self._start_catalog)

    @on(Input.Changed, "#draft, #ctx, #kv_type")
    def _assess_again(self) -> None:
        """Assess the models with the new options, once the user has stopped typing."""
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(SETTLE_S, self._start_assessing)

    def action_move(self, step: int) -> None:
        self._has_moved = self._has_moved or bool(self._shown)
        super().action_move(step)

    def on_option_list_option_highlighted(self) -> None:
        self._has_moved = self._has_moved or self.query_one(OptionList).has_focus
        self._describe_highlighted()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._has_moved = True
        self.action_save()

    # ---- the choice
    @property
    def _target(self) -> str | None:
        """Return the reference of the model to change to; None: it stays."""
        typed, entry = self._read("target"), self._highlighted
        if entry is not None and (self._has_moved or (typed and not is_reference(typed))):
            typed = entry.reference
        return None if not typed or self._is_running(typed) else typed

    def _choose(self, target: str | None) -> ModelChoice:
        return self._choice if target is None else self._choice.retarget(target, self._running_name)

    def _fill_form(self) -> None:
        """Show the draft and context that were chosen earlier for this model.

        The user's own input stays.
        """
        filled = fill_fields(self._choose(self._target))
        for name, old, new in zip(("draft", "ctx"), self._filled, filled, strict=True):
            field = self.query_one(f"#{name}", Input)
            if field.value == old != new:
                with self.prevent(Input.Changed):
                    field.value = new
        self._filled = filled

    def apply(self) -> None:
        spec = self._read("spec")
        if spec:
            parse_spec(spec)
        entry, target = self._highlighted, self._target
        choice = self._make_choice(target)
        if entry is not None and entry.place == DOWNLOAD and target == entry.reference:
            self._controller.download(target, choice)
        elif choice != self._choice or self._active is None:
            self._controller.send(lambda tasks: tasks.change_model(choice))
        if spec:
            self._controller.run_command(f"/spec {spec}")

    def _make_choice(self, target: str | None) -> ModelChoice:
        """Return the choice of a model with what was typed into the form. Raises UsageError."""
        choice = self._choose(target)
        filled_draft, filled_ctx = self._filled
        draft, ctx, kv_type = self._read("draft"), self._read("ctx"), read_kv_type(self._read("kv_type"))
        return replace(
            choice,
            draft=choice.draft if draft in ("", filled_draft) else draft,
            ctx=choice.ctx if ctx == filled_ctx else parse_ctx(ctx),
            kv_type=kv_type,
        )

    def _read(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()


def make_entry(choice: CatalogChoice) -> ModelChoiceEntry:
    """Return the entry of a model that is not on this disk."""
    return ModelChoiceEntry(choice.option.reference, choice.option.shape.weights_bytes, DOWNLOAD)


def fill_fields(choice: ModelChoice) -> tuple[str, str]:
    """Return the texts of the fields for draft and context."""
    return choice.draft or "", str(choice.ctx or "")


def is_reference(typed: str) -> bool:
    """Return whether the text has the form of a reference to one model, even if it also begins another's name."""
    return ":" in typed or "@" in typed or "/" in typed or typed.endswith(".gguf")


def parse_ctx(text: str) -> int | None:
    """Return the context in tokens; None: as planned. Raises UsageError."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > MAX_CTX_DIGITS or not int(text):
        raise UsageError(f"the context must be a number of tokens, not {text!r}")
    return int(text)


def read_kv_type(text: str) -> str | None:
    """Return the type of the cache; None: as planned. Raises UsageError."""
    try:
        return parse_kv_type(text) if text else None
    except ValueError as error:
        raise UsageError(f"the cache type must be {error}, not {text!r}") from None


# ---- model source: the interface through which the chat screen asks for the models on this disk
@dataclass(frozen=True, slots=True)
class ModelSource:
    """The functions that list, assess and fetch models.

    list_entries  all models on this disk that can answer; reads headers
    list_names    their references, for completion; quick
    assess        how a model would run here with the choice's options; the active model is unloaded for it
    list_catalog  the models of the catalog with these words, each planned when it is asked for
    find_best     the model of the catalog to download for this machine, if it is clearly better than those on disk
    pull          fetches a model by its reference, and its draft
    list_known    the references of the catalog, for completion
    """

    list_entries: Callable[[], Sequence[ModelChoiceEntry]] = lambda: ()
    list_names: Callable[[], Sequence[str]] = lambda: ()
    assess: Callable[[ModelChoice, ActiveModel | None], ModelPreview] = lambda choice, active: ModelPreview(fits=True)
    list_catalog: Callable[[Sequence[str], ActiveModel | None], Iterator[CatalogChoice]] = lambda words, active: iter(
        ()
    )
    find_best: Callable[[ActiveModel], CatalogChoice | None] = lambda active: None
    pull: PullModel = lambda reference, output: None
    list_known: Callable[[], Sequence[str]] = lambda: ()


NO_MODELS = ModelSource()
