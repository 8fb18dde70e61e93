"""Search earlier questions as shells do: the words grow letter by letter, and the newest match is found first.

Does not know widgets: the prompt turns keys into calls, and shows `shown` and `title`.
"""

from __future__ import annotations

from eaglelocal.conversation.question_history import QuestionHistory


class HistorySearch:
    """A search. `typed` is the text from before it, which the prompt restores if the search is cancelled."""

    def __init__(self, history: QuestionHistory, typed: str) -> None:
        self.typed, self.words = typed, ""
        self._history = history
        self._path: list[int] = []  # indices into the history, each older than the one before it
        self._is_missed = False

    @property
    def shown(self) -> str:
        return self._history[self._path[-1]] if self._path else self.typed

    @property
    def title(self) -> str:
        return f"{'nothing earlier with' if self._is_missed else 'earlier question with'}: {self.words}"

    def extend(self, text: str) -> None:
        self.words += text
        if not self._path or self.words.casefold() not in self.shown.casefold():
            self._look(self._path[-1] if self._path else None)
            self._path = self._path[-1:]

    def erase(self) -> None:
        self.words, self._path, self._is_missed = self.words[:-1], [], False
        if self.words:
            self._look(None)

    def older(self) -> None:
        self._look(self._path[-1] if self._path else None)

    def newer(self) -> None:
        """Go back to the match that was shown before."""
        self._path, self._is_missed = self._path[:-1] or self._path, False

    def _look(self, before: int | None) -> None:
        """Find the newest match before an index of the history; without one, what is shown stays."""
        found = self._history.find(self.words, before=before, but=self.shown)
        self._is_missed = found is None
        if found is not None:
            self._path.append(found)
