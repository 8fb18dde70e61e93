"""Tests of every editing key of the prompt, on every kind of text, with and without a selection."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.tiers import some_of
from textual.binding import Binding
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from eaglelocal.tui.chat.prompt_input import PromptInput

LONG = "\n".join(f"line {number}" for number in range(312))  # folded when it is pasted
TEXTS = ("", "one line", "first\n\nthird line", "ends with a line\n", "ö\U0001f985 wide\n日本", f"see {LONG}", LONG)
LEAVING = ("submit", "delete_or_leave", "app.")  # actions that do not edit
UNDOERS = ("undo", "redo", "older", "newer", "search")  # they have no step of their own in the history
ACTIONS = sorted({
    binding.action
    for binding in (*TextArea.BINDINGS, *PromptInput.BINDINGS)
    if isinstance(binding, Binding) and not binding.action.startswith(LEAVING)
})  # fmt: skip


def fill(prompt: PromptInput, text: str) -> None:
    """Write a text, with a long paste in it folded."""
    prompt.load_text("")
    before, paste, after = text.partition(LONG)
    prompt.insert(before)
    if paste:
        prompt.insert_pasted(paste)
    prompt.insert(after)


def make_selections(prompt: PromptInput) -> list[Selection]:
    """Return all selections between the start, the middle and the end, both ways, and the empty ones."""
    end = prompt.document.end
    middle = (end[0] // 2, len(prompt.document.get_line(end[0] // 2)) // 2)
    return [Selection(one, other) for one in ((0, 0), middle, end) for other in ((0, 0), middle, end)]


async def check_action(prompt: PromptInput, action: str) -> None:
    """Run an action; if it changed the text, undo brings back the old one and redo the new one."""
    prompt.history.checkpoint()
    before = prompt.whole_text
    await prompt.run_action(action)
    after = prompt.whole_text
    if before != after and action not in UNDOERS:
        prompt.undo()
        assert prompt.whole_text == before
        prompt.redo()
        assert prompt.whole_text == after


@pytest.mark.parametrize("action", some_of(ACTIONS, 6))
def test_no_editing_key_fails_and_each_edit_is_undone(tmp_path: Path, action: str) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        prompt = person.app.prompt
        for text in TEXTS:
            fill(prompt, text)
            for selection in make_selections(prompt):
                fill(prompt, text)
                person.app._clipboard = "from the clipboard"
                prompt.selection = selection
                await check_action(prompt, action)
                prompt.replace_text("")

    play(stage, scenario)


def test_cut_copies_folded_pastes_whole_and_keeps_the_clipboard_of_an_empty_prompt(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        fill(person.app.prompt, f"see {LONG}")
        await person.pilot.press("ctrl+x")
        assert person.app.prompt.text == ""
        assert person.app.clipboard == f"see {LONG}"
        await person.pilot.press("ctrl+x", "ctrl+k", "ctrl+shift+k", "x")
        assert person.app.prompt.text == "x"
        assert person.app.clipboard == f"see {LONG}"

    play(stage, scenario)
