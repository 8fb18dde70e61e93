"""The inputs of a chat template, as they are sent to the process that renders it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from eaglelocal.text.templates.template_messages import Turn


class TemplateSource(NamedTuple):
    """A chat template, and the texts of two tokens that it may show."""

    template: str
    bos_text: str = ""
    eos_text: str = ""


class RenderInputs(NamedTuple):
    """A conversation to be rendered.

    values     more variables, such as enable_thinking
    continues  the prompt ends after the text of the last message, which the answer continues
    """

    turns: list[Turn]
    tools: list[Turn]
    values: Mapping[str, object]
    continues: bool
