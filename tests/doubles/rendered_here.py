"""A renderer of chat templates in the test's own process: starting one takes longer than most scripted answers."""

from __future__ import annotations

from eaglelocal.text.templates.rendering import open_renderings


class RenderedHere:
    """Takes the place of chat_template.make_render_process(), without limits, for templates that tests write."""

    def __init__(self) -> None:
        self.call = open_renderings()

    def start(self, *, after_s: float = 0.0) -> None: ...

    def close(self) -> None: ...
