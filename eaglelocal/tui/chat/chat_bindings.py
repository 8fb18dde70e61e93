"""The keys of the chat screen that are not the prompt's, and their actions, which are methods of `ChatApp`."""

from __future__ import annotations

from textual.binding import Binding, BindingType

CHAT_BINDINGS: list[BindingType] = [
    Binding("f1", "help", "Help", id="help", tooltip="all commands and keys"),
    Binding("escape", "stop", "Stop", id="stop"),
    Binding("f2", "toggle_panel", "Panel", id="panel"),
    Binding("f3", "edit", "Edit last", id="edit", show=False, tooltip="change the last question and ask again"),
    Binding("ctrl+n", "run_command('/clear')", "New", id="new", tooltip="begin a new conversation"),
    Binding("ctrl+o", "conversations", "Open", id="talks", tooltip="open a saved conversation"),
    Binding("f4", "settings", "Settings", id="settings", show=False, tooltip="system message and sampling"),
    Binding("f5", "model", "Model", id="model", show=False, tooltip="change the model or draft"),
    Binding("f8", "copy_answer", "Copy answer", id="copy_answer", show=False, tooltip="copy it as Markdown"),
    Binding(
        "f9",
        "toggle_marks",
        "Mark drafted",
        id="tint",
        show=False,
        tooltip="mark drafted text, and where drafts are accepted",
    ),
    Binding(
        "ctrl+t",
        "toggle_thoughts",
        "Thoughts",
        id="thoughts",
        show=False,
        tooltip="unfold or fold thoughts and long questions",
    ),
    Binding("ctrl+g", "editor", "$EDITOR", id="editor", show=False, tooltip="edit the question in $EDITOR"),
    Binding("ctrl+home", "scroll_chat('top')", "Start", id="top", show=False, tooltip="go to the start", priority=True),
    Binding("ctrl+end", "scroll_chat('end')", "End", id="end", show=False, tooltip="go to the end", priority=True),
    Binding("ctrl+q", "quit", "Leave", id="leave"),
]
