"""A client of the process that renders chat templates under limits: an untrusted template cannot block the engine.

It turns exceeded limits into errors; rendering.py is what runs in the process.
"""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.core.limited_process import (
    CannotStart,
    LimitedProcess,
    LimitedProcessError,
    ProcessLimits,
    TookTooLong,
    TookTooMuchMemory,
)
from eaglelocal.errors import EagleLocalError, ModelFileError, ResourceError
from eaglelocal.text.templates.template_messages import Turn

OPENER = "eaglelocal.text.templates.rendering:open_renderings"
# Usual conversations take milliseconds; the most is trying every form of a long one that a template refuses.
# `wall_s` ends it before the engine, which may wait for it, would count as hung.
LIMITS = ProcessLimits(cpu_s=2.0, memory_bytes=256 * 2**20, wall_s=40.0, max_reply_bytes=64 * 2**20, rest_s=5.0)
Source = tuple[str, str, str]  # a template, and the texts of bos and eos


class RenderProcess:
    """A process with limits. Implements template.Renderer. It may start before there is a template: calls bring one."""

    def __init__(self, limits: ProcessLimits = LIMITS) -> None:
        self._process = LimitedProcess(OPENER, limits=limits)

    def start(self) -> None:
        self._process.start()

    def check(self, source: Source) -> None:
        self._ask(source)

    def render(
        self,
        source: Source,
        turns: list[Turn],
        tools: list[Turn],
        values: Mapping[str, object],
        continues: bool,
    ) -> str:
        text = self._ask(source, turns, tools, dict(values), continues)
        assert isinstance(text, str)
        return text

    def close(self) -> None:
        self._process.close()

    def _ask(self, *args: object) -> object:
        """Call the process. Raises ModelFileError if the template makes it fail, ResourceError if it cannot start."""
        try:
            return self._process.call(*args)
        except LimitedProcessError as error:
            raise _for_people(error) from error


def _for_people(error: LimitedProcessError) -> EagleLocalError:
    match error:
        case TookTooLong():
            return ModelFileError(f"the chat template does not end: {error}")
        case TookTooMuchMemory():
            return ModelFileError(f"the chat template fails{error.detail}: {error}")
        case CannotStart():
            return ResourceError(f"the chat template cannot run: {error}")
    return ModelFileError(f"the chat template fails: {error}")
