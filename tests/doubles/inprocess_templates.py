"""Chat templates rendered in the process of the tests, without limits: for many honest ones in little time."""

from __future__ import annotations

from doubles.rendered_here import RenderedHere

from eaglelocal.text.templates.chat_template import ChatTemplate


def render_in_process(source: str | None, *, bos_text: str = "", eos_text: str = "") -> ChatTemplate:
    """Return a checked template. Raises ModelFileError if it cannot be read."""
    template = ChatTemplate(source, bos_text=bos_text, eos_text=eos_text, process=RenderedHere())
    template.check()
    return template
