"""A chat template that runs in the process of the tests, without its limits: for many honest ones in little time."""

from __future__ import annotations

from eaglelocal.text.rendering import Renderings
from eaglelocal.text.template import ChatTemplate


class RenderingsHere(Renderings):
    """Implements text.template.Renderer."""

    def start(self) -> None: ...

    def close(self) -> None: ...


def template_here(source: str | None, *, bos_text: str = "", eos_text: str = "") -> ChatTemplate:
    """Raises ModelFileError for a template that cannot be read."""
    template = ChatTemplate(source, bos_text=bos_text, eos_text=eos_text, renderer=RenderingsHere())
    template.check()
    return template
