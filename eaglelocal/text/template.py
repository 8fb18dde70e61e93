"""Messages -> the text a model was trained on, by the chat template of its GGUF.

Renders as Hugging Face's tokenizers do: same whitespace rules, same filters and functions, and
`messages`, `tools`, `documents`, `bos_token`, `eos_token`, `add_generation_prompt` as variables.
A rendered text already carries its special tokens: tokenize it with parse_special and without add_special.
Does not tokenize. A file without a template gets ChatML, and `note` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

import jinja2

from eaglelocal.core.ports import Vocabulary
from eaglelocal.core.request import Message
from eaglelocal.errors import EagleLocalError, ModelFileError, RequestError
from eaglelocal.text.sandbox import MAX_TEXT_CHARS, LimitExceeded, Refused, Sandbox

MAX_TEMPLATE_BYTES = 256 * 1024

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate:
    """One model's template, compiled once. Use it from one thread.

    is_fallback  the file has no template, ChatML stands in for it
    note         one line for people about that, or ""
    stops        texts that end an answer though the model may have no token for them
    """

    def __init__(self, source: str | None, *, bos_text: str = "", eos_text: str = "") -> None:
        self.is_fallback = not (source and source.strip())
        self.note = "the model file has no chat template, so ChatML is used" if self.is_fallback else ""
        self.stops: tuple[str, ...] = ("<|im_end|>",) if self.is_fallback else ()
        self._special = {"bos_token": bos_text, "eos_token": eos_text}
        self._sandbox = Sandbox()
        self._template = _compile(self._sandbox, CHATML if self.is_fallback else source or "")

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt. RequestError when the template refuses the conversation, ModelFileError when it fails."""
        if not messages:
            raise RequestError("a conversation needs at least one message")
        self._sandbox.restart()
        pieces = self._template.generate(
            messages=[{"role": message.role, "content": message.content} for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )
        try:
            return _join(pieces)
        except Exception as error:  # a template from a file can fail in any way
            raise _rendering_error(error) from error


def chat_template(vocabulary: Vocabulary) -> ChatTemplate:
    return ChatTemplate(vocabulary.chat_template, bos_text=vocabulary.bos_text, eos_text=vocabulary.eos_text)


def _compile(sandbox: Sandbox, source: str) -> jinja2.Template:
    size_bytes = len(source.encode(errors="replace"))
    if size_bytes > MAX_TEMPLATE_BYTES:
        raise ModelFileError(f"the chat template has {size_bytes} bytes, more than {MAX_TEMPLATE_BYTES}")
    try:
        return sandbox.from_string(sandbox.bounded(source))
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"the chat template cannot be read at line {error.lineno}: {error.message}") from error
    except Exception as error:  # too deep for Python's compiler, and whatever else a file can hold
        raise ModelFileError(f"the chat template cannot be compiled: {_reason(error)}") from error


def _join(pieces: Iterator[str]) -> str:
    kept: list[str] = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_TEXT_CHARS:
            raise RequestError(f"the rendered conversation has more than {MAX_TEXT_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


def _rendering_error(error: Exception) -> EagleLocalError:
    match error:
        case EagleLocalError():
            return error
        case Refused():
            return RequestError(f"the model's chat template refuses the conversation: {error}")
        case LimitExceeded():
            return ModelFileError(f"the chat template does not end{_place(error.__traceback__)}: {error}")
    return ModelFileError(f"the chat template fails{_place(error.__traceback__)}: {_reason(error)}")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _place(trace: TracebackType | None) -> str:
    """ " at line N", from the innermost frame that jinja2 mapped back onto the template."""
    line: int | None = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"
