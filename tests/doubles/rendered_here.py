"""A renderer of chat templates in the test's own process: starting one takes longer than most scripted answers."""

from __future__ import annotations

from eaglelocal.text.templates.render_inputs import RenderInputs, TemplateSource
from eaglelocal.text.templates.rendering import Renderings


class RenderedHere:
    """Implements chat_template.Renderer without limits, for templates that tests write."""

    def __init__(self) -> None:
        self._renderings = Renderings()

    def start(self) -> None: ...

    def check(self, source: TemplateSource) -> None:
        self._renderings.check(source)

    def render(self, source: TemplateSource, inputs: RenderInputs) -> str:
        return self._renderings.render(source, inputs)

    def close(self) -> None: ...
