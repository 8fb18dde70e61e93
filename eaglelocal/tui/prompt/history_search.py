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
        self._matches: list[int] = []  # indices into the history, each older than the one before it
        self._has_failed = False

    @property
    def shown(self) -> str:
        return self._history[self._matches[-1]] if self._matches else self.typed

    @property
    def title(self) -> str:
        return f"{'no earlier question with' if self._has_failed else 'earlier question with'}: {self.words}"

    def extend(self, text: str) -> None:
        self.words += text
        if not self._matches or self.words.casefold() not in self.shown.casefold():
            self.find_older()
            self._matches = self._matches[-1:]

    def erase(self) -> None:
        self.words, self._matches, self._has_failed = self.words[:-1], [], False
        if self.words:
            self.find_older()

    def find_older(self) -> None:
        """Find the next older match; without one, what is shown stays."""
        before = self._matches[-1] if self._matches else None
        found = self._history.find(self.words, before=before, skipped=self.shown)
        self._has_failed = found is None
        if found is not None:
            self._matches.append(found)

    def show_newer(self) -> None:
        """Go back to the match that was shown before."""
        self._matches, self._has_failed = self._matches[:-1] or self._matches, False
