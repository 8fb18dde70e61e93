"""A renderer of chat templates in the test's own process: starting one takes longer than most scripted answers."""

from __future__ import annotations

from eaglelocal.text.templates.rendering import open_renderings
from eaglelocal.text.templates.template_messages import RenderInputs, TemplateSource


class RenderedHere:
    """Takes the place of chat_template.RenderProcess, without limits, for templates that tests write."""

    def __init__(self) -> None:
        self._serve = open_renderings()

    def start(self) -> None: ...

    def check(self, source: TemplateSource) -> None:
        self._serve(source)

    def render(self, source: TemplateSource, inputs: RenderInputs) -> str:
        text = self._serve(source, inputs)
        assert text is not None
        return text

    def close(self) -> None: ...
