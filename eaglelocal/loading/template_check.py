"""Check the chat template of a model, unless an earlier engine did."""

from __future__ import annotations

from eaglelocal.errors import EagleLocalError
from eaglelocal.loading.calibration_store import load, make_template_key, save
from eaglelocal.text.templates.chat_template import ChatTemplate
from eaglelocal.text.templates.render_process import RenderProcess

LATER_S = 1.0  # when a server has started: until then its processes need all cores of a small machine


class TemplateCheck:
    """Starts the renderer's process in time for the first conversation.

    template   what conversations are rendered with
    renderer   its renderer, which is not started yet
    is_urgent  a conversation follows as soon as the engine is loaded
    """

    def __init__(self, template: ChatTemplate, renderer: RenderProcess, *, is_urgent: bool) -> None:
        self._template = template
        self._key = make_template_key(template.text)
        self._is_known = load(self._key) is not None
        renderer.start(after_s=0.0 if is_urgent or not self._is_known else LATER_S)

    def note(self) -> str:
        """Return a note for the user: why the template is another, or why none can be used. That fails chats, not the
        loading.
        """
        if not self._is_known:
            try:
                self._template.check()
            except EagleLocalError as error:
                return error.message
            save(self._key, True)
        return self._template.note
