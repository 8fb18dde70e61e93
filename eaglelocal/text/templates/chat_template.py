"""The chat template of a GGUF, which turns messages into the text a model was trained on.

A rendered text already has its special tokens: tokenize it with parse_special and without add_special, except for the
texts that `literals` hid. A file without a template gets ChatML, and `note` says so. If the template takes no tools, a
system message describes them, and `tools_note` says so. Templates run in a process of their own; only their source is
examined here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.ports import Vocabulary
from eaglelocal.core.request import Message
from eaglelocal.core.thinking import Efforts
from eaglelocal.core.tools import Tool
from eaglelocal.errors import EagleLocalError, ModelFileError, RequestError, ResourceError
from eaglelocal.processes import limited_process
from eaglelocal.processes.limited_process import LimitedProcess, ProcessLimits
from eaglelocal.text.reasoning.efforts import find_efforts
from eaglelocal.text.reasoning.model_families import MAX_TEMPLATE_BYTES, detect_family
from eaglelocal.text.templates.literal_text import HiddenSpellings, Spellings
from eaglelocal.text.templates.template_messages import RenderInputs, TemplateSource, make_tool, make_turns

NO_TOOLS_NOTE = "the chat template has no form of tool calls that can be read, so a system message describes the tools"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate:
    """A model's template. It may be used from any thread, and must be closed.

    is_fallback  the file has no template, and ChatML is used instead
    note         one line for users about that, or ""
    stops        texts that end an answer though the model may have no token for them
    """

    def __init__(
        self, source: str | None, *, bos_text: str = "", eos_text: str = "", process: LimitedProcess | None = None
    ) -> None:
        """Create a template. `process`: renders it (make_render_process); None: one of its own."""
        self.is_fallback = not (source and source.strip())
        self.note = "the model file has no chat template, so ChatML is used" if self.is_fallback else ""
        self.stops: tuple[str, ...] = ("<|im_end|>",) if self.is_fallback else ()
        template = CHATML if self.is_fallback else source or ""
        self.family = detect_family(template[:MAX_TEMPLATE_BYTES])  # a longer one is refused
        self.tools_note = "" if self.family.takes_tools else NO_TOOLS_NOTE
        self._source = TemplateSource(template, bos_text, eos_text)
        self._process = make_render_process() if process is None else process
        self._efforts: Efforts | None = None  # not known yet

    @property
    def pid(self) -> int | None:
        """The id of the process that renders it, or None while none runs."""
        return self._process.pid

    @property
    def text(self) -> str:
        """The template itself."""
        return self._source.template

    @property
    def efforts(self) -> Efforts:
        """The efforts of thinking that it knows; the first call may render some prompts."""
        if self._efforts is None:
            try:
                self._efforts = find_efforts(self.text, self._try_values, self.family.ends_after_reasoning)
            except EagleLocalError:  # it fails with any words, and the conversation will say so
                self._efforts = Efforts()
        return self._efforts

    @efforts.setter
    def efforts(self, known: Efforts) -> None:
        self._efforts = known

    def _try_values(self, values: Mapping[str, object]) -> str | None:
        try:
            return self.render([Message("user", "?")], values=values)
        except RequestError:
            return None

    def start(self, *, after_s: float = 0.0) -> None:
        """Start the process in `after_s` seconds, or when it is first needed."""
        self._process.start(after_s=after_s)

    def check(self) -> None:
        """Wait until the process is ready. Raises ModelFileError if it cannot read the template."""
        self._call()

    def close(self) -> None:
        self._process.close()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        values: Mapping[str, object] | None = None,
        literals: HiddenSpellings | None = None,
        continues: bool = False,
    ) -> str:
        """Return the prompt.

        Raises RequestError if the template refuses the conversation, ModelFileError if it fails.

        values     more variables, such as enable_thinking
        literals   hides the texts that must not become control tokens
        continues  the prompt ends after the text of the last message, which the answer continues
        """
        if not messages:
            raise RequestError("a conversation needs at least one message", parameter="messages")
        literals = HiddenSpellings(Spellings()) if literals is None else literals
        turns, offered = make_turns(messages, literals), [make_tool(tool, literals) for tool in tools]
        hidden = {name: literals.hide_all(value) for name, value in (values or {}).items()}
        text = self._call(RenderInputs(turns, offered, hidden, continues))
        assert isinstance(text, str)
        return text

    def _call(self, *inputs: RenderInputs) -> object:
        """Call the process. Raises ModelFileError if the template makes it fail, ResourceError if it cannot start."""
        try:
            return self._process.call(self._source, *inputs)
        except limited_process.LimitedProcessError as error:
            raise _translate_error(error) from error


def chat_template(vocabulary: Vocabulary, process: LimitedProcess | None = None) -> ChatTemplate:
    source, bos_text, eos_text = vocabulary.chat_template, vocabulary.bos_text, vocabulary.eos_text
    return ChatTemplate(source, bos_text=bos_text, eos_text=eos_text, process=process)


# ---- render process: an untrusted template runs under limits and cannot block the engine
OPENER = "eaglelocal.text.templates.rendering:open_renderings"
# Usual conversations take milliseconds. The slowest is a long one that a template refuses in every form.
# `wall_s` ends the process before the engine, which may wait for it, counts as hung.
LIMITS = ProcessLimits(cpu_s=2.0, memory_bytes=256 * 2**20, wall_s=40.0, max_reply_bytes=64 * 2**20, rest_s=5.0)


def make_render_process(limits: ProcessLimits = LIMITS) -> LimitedProcess:
    """Return the process that renders (rendering.py). It can start before there is a template."""
    return LimitedProcess(OPENER, limits=limits)


def _translate_error(error: limited_process.LimitedProcessError) -> EagleLocalError:
    match error:
        case limited_process.TookTooLong():
            return ModelFileError(f"the chat template does not end: {error}")
        case limited_process.TookTooMuchMemory():
            return ModelFileError(f"the chat template fails{error.detail}: {error}")
        case limited_process.CannotStart():
            return ResourceError(f"the chat template cannot run: {error}")
    return ModelFileError(f"the chat template fails: {error}")
