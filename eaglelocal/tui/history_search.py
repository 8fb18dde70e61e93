"""Looking for an earlier question, as shells do: what is looked for grows letter by letter, the newest is found first.

Knows no widget: keys become calls, and what is to be shown is asked for.
"""

from __future__ import annotations

from eaglelocal.talk.question_history import QuestionHistory


class HistorySearch:
    """`typed` stood there before, and does again when the search is given up."""

    def __init__(self, history: QuestionHistory, typed: str) -> None:
        self.typed, self.words = typed, ""
        self._history = history
        self._path: list[int] = []  # places in the history, each older than the one before it
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
        """Back to the one that was shown before."""
        self._path, self._is_missed = self._path[:-1] or self._path, False

    def _look(self, before: int | None) -> None:
        """For the newest one before that place; what is shown stays where there is none."""
        found = self._history.find(self.words, before=before, but=self.shown)
        self._is_missed = found is None
        if found is not None:
            self._path.append(found)
