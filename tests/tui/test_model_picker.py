"""The model picker: what is on disk, how it would run here, and what is chosen in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from textual.widgets import Input, Label, OptionList

from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.run_options import ModelChoice, RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.preparation.model_choices import CatalogChoice, ModelChoiceEntry, ModelPreview
from eaglelocal.preparation.model_choices import list_catalog as real_list_catalog
from eaglelocal.tui.chat.model_picker import (
    BATCH_S,
    DOWNLOAD,
    ModelDialog,
    ModelSource,
    PickerRows,
    describe_preview,
    parse_ctx,
    shorten_name,
)

GB = 10**9
ENTRIES = (
    ModelChoiceEntry("Qwen/Qwen3-8B-GGUF:Q4_K_M", 5 * GB, "hub"),
    ModelChoiceEntry("llama3.2:3b", 2 * GB, "Ollama"),
    ModelChoiceEntry("large", 90 * GB, "LM Studio"),
    ModelChoiceEntry("demo", GB, "embedded"),
)
OUTLOOKS = {
    "Qwen/Qwen3-8B-GGUF:Q4_K_M": ModelPreview(True, 40960, "f16", "EAGLE-3.1 head a", "20 of 37 layers on the GPU"),
    "llama3.2:3b": ModelPreview(True, 131072, "q8_0", "lookup in the text so far"),
    "large": ModelPreview(False, problem="too large for this machine"),
}
assessed: list[tuple[ModelChoice, ActiveModel | None]] = []


def assess(choice: ModelChoice, active: ActiveModel | None) -> ModelPreview:
    assessed.append((choice, active))
    return OUTLOOKS.get(choice.target or "", ModelPreview(True, 2048, "f16", "its own EAGLE-3.1 head"))


SOURCE = ModelSource(lambda: ENTRIES, lambda: [entry.reference for entry in ENTRIES], assess)


def stage_in(folder: Path, **more: object) -> ChatHarness:
    return ChatHarness(folder, models=SOURCE, **more)  # type: ignore[arg-type]


def with_dialog(
    scenario: Callable[[ChatObserver, ModelDialog], Awaitable[None]], key: str = "f5"
) -> Callable[[ChatObserver], Awaitable[None]]:
    async def whole(person: ChatObserver) -> None:
        await person.pilot.press(key)
        await person.until(lambda: isinstance(person.app.screen, ModelDialog), "the dialog")
        await person.sees("cannot run")
        assert isinstance(person.app.screen, ModelDialog)
        await scenario(person, person.app.screen)

    return whole


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_all_models_are_listed_with_how_they_would_run(tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        rows = [line for line in person.text.splitlines() if " GB  " in line]
        expected = (
            ("Qwen/Qwen3-8B-GGUF:Q4_K_M", "5.00 GB", "fits partly", "hub"),
            ("llama3.2:3b", "2.00 GB", "fits ", "Ollama"),
            ("large", "90.0 GB", "cannot run", "LM Studio"),
            ("demo", "1.00 GB", "fits ", "embedded"),
        )
        for row, words in zip(rows, expected, strict=True):
            assert all(word in row for word in words), row
        assert dialog.query_one(OptionList).highlighted is None  # the model that runs is not among them
        await person.pilot.press("down")
        await person.sees("40960 tokens of context, cache f16, 20 of 37 layers on the GPU", "EAGLE-3.1 head a")
        await person.pilot.press("down")
        await person.sees("131072 tokens of context, cache q8_0; draft: lookup in the text")
        await person.pilot.press("up", "up")
        await person.sees("2048 tokens of context, cache f16; draft: its own EAGLE-3.1 head")

    play(stage_in(tmp_path, size=size), with_dialog(scenario))


def test_each_model_has_a_row_on_a_narrow_screen(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        await person.sees("model          size  predicted   here        from")
        await person.sees("..F:Q4_K_M  5.00 GB              fits partly hub")

    play(stage_in(tmp_path, size=(60, 15)), with_dialog(scenario))


def test_a_few_letters_find_a_model_and_enter_takes_it(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        await person.type("lama 3b")
        await person.until(lambda: dialog.query_one(OptionList).option_count == 1, "one model")
        await person.pilot.press("enter")
        await person.sees("llama3.2:3b · ")

    play(stage, with_dialog(scenario))
    assert [client.label for client in stage.clients] == ["scripted model", "llama3.2:3b"]


@pytest.mark.parametrize("device", ["arrows", "mouse"])
def test_a_row_can_be_chosen(tmp_path: Path, device: str) -> None:
    stage = stage_in(tmp_path)

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        if device == "arrows":
            await person.pilot.press("down", "down", "enter")
        else:
            await person.pilot.click(OptionList, offset=(3, 1))
        await person.sees("llama3.2:3b · ")

    play(stage, with_dialog(scenario))


def test_without_a_choice_nothing_is_loaded(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        await person.pilot.press("enter")
        await person.until(lambda: person.app.screen is not dialog, "the end of the dialog")
        await person.idle()

    play(stage, with_dialog(scenario))
    assert [client.label for client in stage.clients] == ["scripted model"]


def test_context_and_cache_type_are_part_of_the_choice(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        dialog.query_one("#ctx", Input).value = "many"
        await person.pilot.press("ctrl+s")
        await person.sees("must be a number of tokens")
        dialog.query_one("#ctx", Input).value = "512"
        dialog.query_one("#kv_type", Input).value = "q5"
        await person.pilot.press("ctrl+s")
        await person.sees("must be one of f16, q8_0, q5_1")
        dialog.query_one("#kv_type", Input).value = "q8_0"
        await person.pilot.press("down", "down", "ctrl+s")
        await person.sees("llama3.2:3b · ")
        await person.ask("/model llama3.2:3b")
        await person.idle()
        assert "was chosen for the model before" not in person.text
        await person.ask("/model other.gguf")
        await person.sees("other.gguf · ", "the context of 512 tokens was chosen for the model before")

    play(stage, with_dialog(scenario))
    asked = list(dict.fromkeys((choice.target, choice.ctx, choice.kv_type) for choice in stage.choices))
    assert asked == [(None, None, None), ("llama3.2:3b", 512, "q8_0"), ("other.gguf", None, "q8_0")]


def test_the_model_that_runs_is_the_row_to_begin_with_and_no_choice(tmp_path: Path) -> None:
    """Also if the list arrives when somebody is in it already."""
    gate = threading.Event()

    def list_entries() -> Sequence[ModelChoiceEntry]:
        assert gate.wait(20)
        return (*ENTRIES, ModelChoiceEntry("scripted model", GB, "hub"))

    stage = ChatHarness(tmp_path, models=ModelSource(list_entries, assess=assess))

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f5", "tab")
        await person.until(lambda: isinstance(person.app.focused, OptionList), "the focus on the list")
        gate.set()
        await person.sees("cannot run")
        models = person.app.screen.query_one(OptionList)
        assert models.highlighted == len(ENTRIES)
        await person.pilot.press("ctrl+s")
        await person.until(lambda: len(person.app.screen_stack) == 1, "the end of the dialog")
        await person.idle()
        await person.pilot.press("f5")
        await person.sees("cannot run")
        await person.pilot.press("down", "up", "ctrl+s")  # away and back
        await person.idle()
        await person.pilot.press("f5")
        await person.sees("cannot run")
        await person.pilot.press("tab", "up", "ctrl+s")
        await person.sees("demo · ")

    play(stage, scenario)
    assert [client.label for client in stage.clients] == ["scripted model", "demo"]


def test_a_context_stays_with_the_model_that_it_was_chosen_for(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)
    assessed.clear()

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        dialog.query_one("#ctx", Input).value = "512"
        dialog.query_one("#draft", Input).value = "head.gguf"
        await person.pilot.press("down", "down", "ctrl+s")
        await person.sees("llama3.2:3b · ")
        assessed.clear()
        await person.pilot.press("f5")
        await person.sees("cannot run")
        form = person.app.screen

        def read() -> tuple[str, str]:
            return form.query_one("#draft", Input).value, form.query_one("#ctx", Input).value

        assert read() == ("head.gguf", "512")
        await person.pilot.press("down")
        assert read() == ("", "")
        await person.pilot.press("up")
        assert read() == ("head.gguf", "512")
        await person.type("demo")
        assert read() == ("", "")
        form.query_one("#ctx", Input).value = "99"  # typed for whatever is chosen now
        await person.pilot.press("down", "enter")
        await person.sees("demo · ")

    play(stage, with_dialog(scenario))
    last = stage.choices[-1]
    assert (last.target, last.draft, last.ctx) == ("demo", None, 99)
    by_target = {choice.target: (choice.draft, choice.ctx) for choice, _ in assessed}
    assert by_target["llama3.2:3b"] == ("head.gguf", 512)
    assert by_target["large"] == by_target["demo"] == (None, None)


def test_the_models_are_assessed_with_what_is_typed(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        assessed.clear()
        dialog.query_one("#ctx", Input).value = "many"
        dialog.query_one("#ctx", Input).value = "512"
        dialog.query_one("#kv_type", Input).value = "q8_0"
        await person.until(lambda: len(assessed) == len(ENTRIES), "the preview of each model")
        assert {(choice.ctx, choice.kv_type) for choice, _ in assessed} == {(512, "q8_0")}

    play(stage, with_dialog(scenario))


def test_what_was_chosen_for_one_model_is_not_for_another() -> None:
    choice = ModelChoice(target="a", draft="head.gguf", ctx=512, kv_type="q8_0")
    assert choice.retarget("b") == ModelChoice(target="b", kv_type="q8_0")
    assert choice.retarget("a") is choice
    assert replace(choice, draft="ngram").retarget("b").draft == "ngram"
    first = ModelChoice(ctx=512)
    assert first.retarget("started", running="started") is first


def test_the_picker_opens_with_the_command_too_and_where_no_model_could_be_loaded(tmp_path: Path) -> None:
    stage = stage_in(tmp_path, is_broken=True)
    assessed.clear()

    async def scenario(person: ChatObserver) -> None:
        await person.sees("no file missing.gguf")
        await person.ask("/model")
        await person.until(lambda: isinstance(person.app.screen, ModelDialog), "the dialog")
        await person.sees("no model is loaded", "cannot run")
        await person.pilot.press("down", "down", "enter")
        await person.sees("llama3.2:3b · 0/")

    play(stage, scenario, waits=False)
    assert {active for _, active in assessed} == {None}


def test_the_reference_of_a_command_is_completed(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.type("/model ll")
        await person.pilot.press("tab", "enter")
        await person.sees("llama3.2:3b · ")

    play(stage, scenario)


def test_the_inline_menu_offers_the_catalog_too(tmp_path: Path) -> None:
    source = ModelSource(list_names=lambda: ("llama3.2:3b",), list_known=lambda: ("qwen3-8b:Q4_K_M", "gemma:2b"))

    async def scenario(person: ChatObserver) -> None:
        await person.until(lambda: bool(person.app.models.catalog_names), "the catalog")
        await person.type("/model 8b qwe")
        await person.until(lambda: [row.text for row in person.app.prompt.menu.rows] == ["qwen3-8b:Q4_K_M"], "a row")

    play(ChatHarness(tmp_path, models=source), scenario)


def test_a_model_opened_by_its_path_is_listed_and_the_one_that_runs_is_marked(tmp_path: Path) -> None:
    first, second = (str(tmp_path / name) for name in ("first.gguf", "second.gguf"))

    async def scenario(person: ChatObserver) -> None:
        for path in (first, second):
            await person.ask(f"/model {path}")
            await person.until(lambda path=path: path in person.app.models.list_references(), path)  # type: ignore[misc]
        await person.pilot.press("f5")
        await person.sees("/first ", "cannot run")
        (one,), (other,) = ([row for row in person.text.splitlines() if name in row and " fits" in row]
                            for name in ("/first ", "/second "))  # fmt: skip
        assert "a path" in one and "running" in other
        assert person.app.screen.query_one(OptionList).highlighted is not None

    play(stage_in(tmp_path, size=(120, 40)), scenario)


def test_a_search_without_a_match_says_what_to_do(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ask("/model nope")
        await person.sees("nothing matches; enter loads what is typed")

    play(stage_in(tmp_path), scenario)


def test_a_typed_path_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.gguf").touch()
    monkeypatch.chdir(tmp_path)

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        await person.pilot.press(*"./mi")
        await person.sees("./mine.gguf")
        await person.pilot.press("right")
        assert dialog.query_one("#target", Input).value == "./mine.gguf"

    play(stage_in(tmp_path), with_dialog(scenario))


def test_a_key_that_reaches_a_dialog_while_the_chat_ends_does_nothing(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        person.app.pop_screen()  # as leaving does
        dialog.action_leave()
        assert len(person.app.screen_stack) == 1

    play(stage_in(tmp_path), with_dialog(scenario))


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_list_that_arrives_while_its_dialog_closes_is_dropped(tmp_path: Path, is_closed: bool) -> None:
    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        if is_closed:
            await person.pilot.press("escape")
            await person.until(lambda: not dialog.is_attached, "the end of the dialog")
        else:  # its widgets go first
            dialog.dismiss(None)
            await dialog.query(OptionList).remove()
        dialog._show_entries(ENTRIES, "")
        dialog._add_catalog([], is_end=True)
        dialog._show_preview("demo", OUTLOOKS["large"])

    play(stage_in(tmp_path), with_dialog(scenario))


def list_catalog(words: Sequence[str], active: ActiveModel | None) -> Iterator[CatalogChoice]:
    options = RunOptions()
    return real_list_catalog(options, words or ["qwen3-8b"], machine_name="cpu-16gb")


def test_the_catalog_is_searched_and_a_model_downloaded_while_the_chat_goes_on(tmp_path: Path) -> None:
    gate, pulled = threading.Event(), list[str]()

    def pull(reference: str, output: MessageOutput) -> None:
        pulled.append(reference)
        output.progress()(LoadProgress(0.38, "fetching 5 GB", "3 MB/s"))
        assert gate.wait(20)

    stage = ChatHarness(tmp_path, models=replace(SOURCE, list_catalog=list_catalog, pull=pull))

    async def scenario(person: ChatObserver) -> None:
        await person.type("unsent")
        await person.pilot.press("f5")
        await person.type("qwen3-8b:q4_k")
        await person.sees("qwen3-8b:Q4_K_M", "tok/s", "enter downloads 5.05 GB")
        await person.pilot.press("escape")
        assert person.app.prompt.text == "unsent"
        await person.pilot.press("ctrl+u")
        await person.ask("/model qwen3-8b:Q4_K_M")  # the catalog has it, this disk does not
        await person.sees("enter downloads")
        await person.pilot.press("enter")
        await person.sees("qwen3-8b:Q4_K_M 38 %, fetching 5 GB, 3 MB/s")
        await person.ask("meanwhile")
        await person.sees("the first answer")
        await person.type("unsent")
        gate.set()
        await person.sees("── qwen3-8b:Q4_K_M · scripted head")
        await person.no_longer_sees("38 %")
        assert person.app.prompt.text == "unsent"

    play(stage, scenario)
    assert pulled == ["qwen3-8b:Q4_K_M"]
    assert [client.label for client in stage.clients] == ["scripted model", "qwen3-8b:Q4_K_M"]


def test_what_cannot_run_is_listed_when_all_is_known(tmp_path: Path) -> None:
    gate = threading.Event()
    choices = list(real_list_catalog(RunOptions(), ["qwen3-14b"], machine_name="cpu-16gb"))
    num_fitting = sum(choice.fits for choice in choices)
    assert 4 <= num_fitting < len(choices)

    def listed(words: Sequence[str], active: ActiveModel | None) -> Iterator[CatalogChoice]:
        for choice in sorted(choices, key=lambda each: each.fits):
            time.sleep(BATCH_S)  # each is shown at once
            yield choice
        assert gate.wait(20)

    stage = ChatHarness(tmp_path, models=replace(SOURCE, list_catalog=listed))

    async def scenario(person: ChatObserver, dialog: ModelDialog) -> None:
        models = dialog.query_one(OptionList)
        assert dialog.query_one("#preview", Label).content == ""  # not that no model is known
        await person.until(lambda: models.option_count == len(ENTRIES) + num_fitting, "the first rows")
        gate.set()
        await person.until(lambda: "cannot run" in rows_of(models)[-1], "the last rows")
        assert models.option_count == len(ENTRIES) + len(choices)
        assert "download " in person.text  # whole, beside a scrollbar

    play(stage, with_dialog(scenario))


def rows_of(models: OptionList) -> list[str]:
    return [str(models.get_option_at_index(index).prompt) for index in range(models.option_count)]


def test_the_best_model_is_shown_before_it_is_downloaded(tmp_path: Path) -> None:
    best = next(list_catalog(["qwen3-8b:q4_k"], None))
    source = replace(SOURCE, list_catalog=list_catalog, find_best=lambda active: best)

    async def scenario(person: ChatObserver) -> None:
        await person.sees("download qwen3-8b")
        await person.pilot.press("down", "enter")
        await person.sees("enter downloads 5.05 GB")

    play(ChatHarness(tmp_path, models=source), scenario)


def test_a_download_is_stopped_by_esc_and_resumed_later(tmp_path: Path) -> None:
    def pull(reference: str, output: MessageOutput) -> None:
        show = output.progress()
        while True:
            show(LoadProgress(0.1, "fetching 5 GB"))
            time.sleep(0.01)

    stage = ChatHarness(tmp_path, models=replace(SOURCE, list_catalog=list_catalog, pull=pull))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/model qwen3-8b:Q4_K_M")
        await person.sees("enter downloads")
        await person.pilot.press("enter")
        await person.sees("Q4_K_M 10 %")
        await person.pilot.press("escape")
        await person.sees("was stopped; /model qwen3-8b:Q4_K_M resumes")

    play(stage, scenario)
    assert len(stage.clients) == 1


def test_a_model_that_is_named_exactly_comes_first() -> None:
    entries = tuple(ModelChoiceEntry(name, GB, "hub") for name in ("demo@1b", "demo", "other"))
    rows = PickerRows(entries)
    assert [entry.reference for entry in rows.match("DEMO")] == ["demo", "demo@1b"]
    assert rows.match("nothing") == []


def test_every_speed_has_its_column() -> None:
    rows = PickerRows(previews={"demo": ModelPreview(True, tok_s=1234.5)})
    assert rows.format_row(ENTRIES[-1], 10) == "demo        1.00 GB  1234 tok/s  fits        embedded"
    rows = PickerRows(previews={"demo": ModelPreview(True, tok_s=112.5)})
    assert rows.format_row(ENTRIES[-1], 10) == "demo        1.00 GB  112.5 tok/s fits        embedded"


def test_the_best_to_download_comes_behind_what_is_on_disk() -> None:
    names = ("weak", "unknown", "huge", "best")
    entries = [ModelChoiceEntry("demo", GB, "hub"), *(ModelChoiceEntry(name, GB, DOWNLOAD) for name in names)]
    previews = {name: ModelPreview(True, score=score) for name, score in (("weak", -1.0), ("best", 2.0))}
    rows = PickerRows(entries, previews | {"huge": ModelPreview(False), "demo": ModelPreview(True)})
    assert [entry.reference for entry in rows.match("")] == ["demo", "unknown", "best", "weak", "huge"]


@pytest.mark.parametrize("key", ["f5", "ctrl+o", "f1"])
def test_a_dialog_that_is_being_removed_takes_what_still_comes(tmp_path: Path, key: str) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press(key)
        await person.until(lambda: bool(person.app.screen.query(Input)), "the dialog")
        await person.pilot.pause()
        dialog = person.app.screen
        typed = dialog.query(Input).first()
        dialog.dismiss(None)
        typed.value = "typed"
        await dialog.query("#preview, #about, Static").remove()
        if isinstance(dialog, ModelDialog):
            dialog._show_entries(ENTRIES, "")
            dialog._start_assessing()
            dialog._start_catalog()
        await person.pilot.pause()
        assert person.app.is_running

    play(stage_in(tmp_path), scenario)


def test_a_long_name_keeps_its_end() -> None:
    assert shorten_name("someone/a-very-long-name-GGUF:Q4_K_M", 20) == "..g-name-GGUF:Q4_K_M"
    assert shorten_name("short", 20) == "short"
    assert shorten_name("SmolLM2-135M-Instruct.Q4_1.gguf", 29) == "SmolLM2-135M-Instruct.Q4_1"


def test_an_unfinished_plan_promises_no_speed() -> None:
    assert describe_preview(None) == "..."
    assert describe_preview(ModelPreview(False, problem="it is damaged")) == "it is damaged"


@pytest.mark.parametrize("text", ["0", "²", "-1", "9" * 5000])
def test_a_context_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the context must be a number of tokens"):
        parse_ctx(text)
    assert (parse_ctx(""), parse_ctx("4096")) == (None, 4096)
