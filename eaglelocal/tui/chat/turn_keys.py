"""The keys that act on the turn on which the user stands: copy, edit, ask again, branch, and switch versions.

While the user stands on a turn, the prompt passes its keys here first, so that their order is kept. Any other letter
ends that and is written into the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from textual import events
from textual.binding import Binding, BindingType

from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_tasks import AskedQuestion
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.mapped_keys import map_keys, name_key
from eaglelocal.tui.transcript.transcript import Transcript

# while the user stands on a turn; the prompt has the focus and passes its keys on. Described ones are shown
TURN_BINDINGS: list[BindingType] = [
    Binding("alt+up,up", "older_turn", "", id="older_turn"),
    Binding("alt+down,down", "newer_turn", "", id="newer_turn"),
    Binding("y", "copy_turn", "copy", id="copy_turn"),
    Binding("e", "edit_turn", "edit", id="edit_turn"),
    Binding("r", "ask_again", "again", id="ask_again"),
    Binding("b", "branch", "branch", id="branch"),
    Binding("left,left_square_bracket", "older_version", "version", id="older_version"),
    Binding("right,right_square_bracket", "newer_version", "version", id="newer_version"),
    Binding("escape", "leave_turn", "back", id="leave_turn"),
]


class TurnHost(Protocol):
    """The screen on which turns are shown."""

    def copy_text(self, text: str) -> None: ...

    def begin_editing(self, place: AskedQuestion) -> None: ...

    def refuse_while_busy(self) -> bool:
        """Return True, and say so, if the user has to wait until the answer has ended."""

    def notify(self, message: str) -> None: ...

    def clear_notifications(self) -> None: ...


class TurnKeys:
    """The keys of a turn, and what they do."""

    def __init__(
        self,
        host: TurnHost,
        transcript: Transcript,
        controller: ChatController,
        prompt_keys: Mapping[str, Binding],
        keys: Mapping[str, str],
    ) -> None:
        """prompt_keys: the bindings of the prompt by key. keys: binding id -> comma-separated keys, by choice."""
        self._host, self._transcript, self._controller = host, transcript, controller
        self._prompt_keys = prompt_keys
        self.mapped_keys = map_keys(TURN_BINDINGS, keys)
        self._actions: Mapping[str, Callable[[], None]] = {
            "older_turn": lambda: transcript.move_stop(-1),
            "newer_turn": lambda: transcript.move_stop(1),
            "copy_turn": self._copy,
            "edit_turn": self._edit,
            "ask_again": self._ask_again,
            "branch": self._branch,
            "older_version": lambda: self._step_version(-1),
            "newer_version": lambda: self._step_version(1),
            "leave_turn": transcript.leave_stop,
        }

    def take(self, event: events.Key | events.Paste) -> bool:
        """Act on a key if the user stands on a turn. Return False if it is for the prompt, as a paste is."""
        if self._transcript.stop is None:
            return False
        self._host.clear_notifications()  # they are about what was done before
        if isinstance(event, events.Paste):
            self._transcript.leave_stop()
            return False
        if binding := self.mapped_keys.get(event.key):
            self._actions[binding.action]()
            return True
        bound = self._prompt_keys.get(event.key)
        is_editing = bound is not None and not bound.action.startswith("app.")  # others scroll, or act on the chat
        if event.is_printable or is_editing:
            self._transcript.leave_stop()
        return bound is not None and bound.action == "submit"  # which sends nothing here

    def describe(self, glyphs: Glyphs) -> str:
        """Return the keys of a turn in a line, with its version, "" while the user does not stand on one."""
        if self._transcript.stop is None:
            return ""
        place = self._find_question()
        version = "" if place is None or place.num_versions == 1 else f" {place.version + 1}/{place.num_versions}"
        firsts = {binding.id: (binding, key) for key, binding in reversed(self.mapped_keys.items())}
        names: dict[str, list[str]] = {}
        for binding, key in reversed(firsts.values()):
            names.setdefault(binding.description, []).append("esc" if key == "escape" else name_key(key))
        hints = {purpose: f"{'/'.join(keys)} {purpose}" for purpose, keys in names.items() if purpose}
        return f" {glyphs.dot} ".join(hint + version * (purpose == "version") for purpose, hint in hints.items())

    # ---- actions
    def _copy(self) -> None:
        self._host.copy_text(self._transcript.stop_text)

    def _edit(self) -> None:
        if (place := self._find_place()) is not None:
            self._host.begin_editing(place)
            self._transcript.leave_stop()

    def _ask_again(self) -> None:
        place = self._find_place()
        if place is not None and not self._host.refuse_while_busy():
            self._controller.send(lambda tasks: tasks.ask_instead(place.text, place), question=place.text)

    def _branch(self) -> None:
        place = self._find_place()
        if place is None or self._host.refuse_while_busy():
            return
        if place.has_answer:
            self._controller.send(lambda tasks: tasks.branch(place))
        else:
            self._host.notify("there is nothing to branch from: the question has no answer")

    def _step_version(self, step: int) -> None:
        place = self._find_place()
        if place is None or self._host.refuse_while_busy():
            return
        if place.num_versions == 1:
            self._host.notify("this turn has one version; asking it again makes another")
        else:
            version = (place.version + step) % place.num_versions
            self._controller.send(lambda tasks: tasks.choose_version(place, version))

    def _find_place(self) -> AskedQuestion | None:
        """Return the question of the turn on which the user stands; if it has no turn, say so and return None."""
        if (place := self._find_question()) is None:
            self._host.notify("this question is not in the conversation, because it was refused")
        return place

    def _find_question(self) -> AskedQuestion | None:
        entry = self._transcript.stop_question
        place = None if entry is None else self._controller.find_question(entry.turn)
        return None if entry is None or place is None or not entry.text.endswith(place.text) else place
