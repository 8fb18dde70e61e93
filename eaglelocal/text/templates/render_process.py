"""A client of the process that renders chat templates under limits: an untrusted template cannot block the engine.

It turns exceeded limits into errors. The process runs rendering.py.
"""

from __future__ import annotations

from eaglelocal.errors import EagleLocalError, ModelFileError, ResourceError
from eaglelocal.processes.limited_process import (
    CannotStart,
    LimitedProcess,
    LimitedProcessError,
    ProcessLimits,
    TookTooLong,
    TookTooMuchMemory,
)
from eaglelocal.text.templates.render_inputs import RenderInputs, TemplateSource

OPENER = "eaglelocal.text.templates.rendering:open_renderings"
# Usual conversations take milliseconds. The slowest is a long one that a template refuses in every form.
# `wall_s` ends the process before the engine, which may wait for it, counts as hung.
LIMITS = ProcessLimits(cpu_s=2.0, memory_bytes=256 * 2**20, wall_s=40.0, max_reply_bytes=64 * 2**20, rest_s=5.0)


class RenderProcess:
    """A process with limits. Implements chat_template.Renderer. It can start before there is a template."""

    def __init__(self, limits: ProcessLimits = LIMITS) -> None:
        self._process = LimitedProcess(OPENER, limits=limits)

    def start(self, *, after_s: float = 0.0) -> None:
        """Start the process after so many seconds, or when the first template needs it."""
        self._process.start(after_s=after_s)

    def check(self, source: TemplateSource) -> None:
        self._call(source)

    def render(self, source: TemplateSource, inputs: RenderInputs) -> str:
        text = self._call(source, inputs)
        assert isinstance(text, str)
        return text

    def close(self) -> None:
        self._process.close()

    def _call(self, *args: object) -> object:
        """Call the process. Raises ModelFileError if the template makes it fail, ResourceError if it cannot start."""
        try:
            return self._process.call(*args)
        except LimitedProcessError as error:
            raise _translate_error(error) from error


def _translate_error(error: LimitedProcessError) -> EagleLocalError:
    match error:
        case TookTooLong():
            return ModelFileError(f"the chat template does not end: {error}")
        case TookTooMuchMemory():
            return ModelFileError(f"the chat template fails{error.detail}: {error}")
        case CannotStart():
            return ResourceError(f"the chat template cannot run: {error}")
    return ModelFileError(f"the chat template fails: {error}")
