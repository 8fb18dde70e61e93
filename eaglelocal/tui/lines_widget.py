"""A widget that shows lines with roles, and redraws only those that have changed.

It costs far less than a screen full of labels: no layout, no markup, one strip per line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from eaglelocal.tui.styled_lines import EMPTY_LINE, SELECTED, Line, Role, cell_width, plain_text

ROLES: tuple[Role, ...] = ("text", "strong", "quiet", "good", "bad", "warn", "accent", "track", "selected")


class LinesWidget(Widget):
    """A widget that shows the lines last given to `show_lines`, from the top; the rest of it is empty."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{role}" for role in ROLES}
    DEFAULT_CSS = """
    LinesWidget {
        & > .lines--strong { text-style: bold; }
        & > .lines--quiet { color: $text-muted; }
        & > .lines--good { color: $text-success; }
        & > .lines--bad { color: $text-error; text-style: bold; }
        & > .lines--warn { color: $text-warning; }
        & > .lines--accent { color: $text-accent; }
        & > .lines--track { color: $foreground 25%; }
        & > .lines--selected { background: $block-cursor-background; text-style: bold; }
        &:ansi > .lines--quiet { color: ansi_default; text-style: dim; }
        &:ansi > .lines--good { color: ansi_green; }
        &:ansi > .lines--bad { color: ansi_red; text-style: bold; }
        &:ansi > .lines--warn { color: ansi_yellow; }
        &:ansi > .lines--accent { color: ansi_cyan; }
        &:ansi > .lines--track { color: ansi_default; text-style: dim; }
        &:ansi > .lines--selected { background: ansi_default; text-style: reverse; }
    }
    """

    def __init__(self, *, id: str, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._styles: dict[Role, Style] = {}
        self._titles = ("", "")
        self.num_drawn = 0  # lines drawn so far, a measure of the cost

    @property
    def text(self) -> str:
        """The text that is shown, without styles."""
        return "\n".join(map(plain_text, self._lines))

    def show_titles(self, title: str, subtitle: str = "") -> None:
        """Show texts in the upper and lower border, as they are: markup means nothing in them."""
        if (title, subtitle) != self._titles:
            self._titles = (title, subtitle)
            self.border_title = Content(title) if title else None
            self.border_subtitle = Content(subtitle) if subtitle else None

    @property
    def titles(self) -> tuple[str, str]:
        """The texts in the upper and lower border."""
        return self._titles

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines; only those that differ are redrawn."""
        old, self._lines = self._lines, list(lines)
        width = self.size.width
        for y in range(max(len(old), len(self._lines))):
            if _line_at(old, y) != _line_at(self._lines, y):
                self.refresh(Region(0, y, width, 1))

    def render_line(self, y: int) -> Strip:
        self.num_drawn += 1
        spans = _line_at(self._lines, y)
        over = self._style("selected") if spans[:1] == (SELECTED,) else Style.null()
        segments = [Segment(span.text, self._style(span.role) + over) for span in spans]
        return Strip(segments, cell_width(spans)).adjust_cell_length(self.size.width, self._style("text") + over)

    def notify_style_update(self) -> None:
        """Drop the cached styles when the theme changes."""
        self._styles = {}
        super().notify_style_update()

    def _style(self, role: Role) -> Style:
        style = self._styles.get(role)
        if style is None:
            is_partial = role == "selected"  # it goes over the styles of the other roles
            style = self._styles[role] = self.get_component_rich_style(f"lines--{role}", partial=is_partial)
        return style


def _line_at(lines: Sequence[Line], y: int) -> Line:
    return lines[y] if y < len(lines) else EMPTY_LINE
