"""The prompts of a measurement: built-in questions by category, or a file of the user's.

A line of a file is text, or JSON: {"prompt": "..."}, {"messages": [...]} or {"tokens": [...]}, each with an
optional "category", or a bare list of token ids or messages. A line that begins with { must be JSON; one that
begins with [ is text unless it is such a list. Token ids are sent unchanged.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path

from eaglelocal.core.image import NAMES, media_type
from eaglelocal.core.json_text import NestedTooDeep, read_json, read_object
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Image, Message
from eaglelocal.core.terminal_text import FaultInLine, format_place, join_in_json, read_text_file
from eaglelocal.errors import UsageError

BUILT_IN = "questions.jsonl.gz"  # tests/guide/write_questions.py says how it was made
DEFAULT_CATEGORY = "prompts"
FIELD_FORMS = {  # with the names that other tools use
    "prompt": "prompt",
    "text": "prompt",
    "messages": "messages",
    "tokens": "tokens",
    "token_ids": "tokens",
    "prompt_token_ids": "tokens",
}
FORMS = '{"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or {"tokens": [1, 2]}'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt: a conversation, or token ids."""

    category: str
    messages: tuple[Message, ...] = ()
    tokens: tuple[int, ...] = ()

    @property
    def has_images(self) -> bool:
        return any(message.images for message in self.messages)


def builtin_prompts(categories: Sequence[str], num_prompts: int) -> list[BenchPrompt]:
    """Return `num_prompts` questions of each named category, or of all if none is named: again from the first where
    there are fewer. None of them is in `training_questions`, nor was the embedded model trained on them.

    Raises UsageError for an unknown category.
    """
    groups = group_by_category(_read_built_in("held_out"))
    if unknown := sorted(set(categories) - set(groups)):
        raise UsageError(f"there is no category {unknown[0]!r}", hint=f"one of: {', '.join(groups)}")
    chosen = dict.fromkeys(categories or groups)
    return [prompt for category in chosen for prompt in islice(cycle(groups[category]), num_prompts)]


def training_questions() -> list[BenchPrompt]:
    """Return the built-in questions to train with, the categories in turn."""
    groups = group_by_category(_read_built_in("train")).values()
    return [prompt for turn in zip(*groups, strict=True) for prompt in turn]


def _read_built_in(split: str) -> list[BenchPrompt]:
    data = files("eaglelocal.bench").joinpath(BUILT_IN).read_bytes()
    lines = gzip.decompress(data).decode().splitlines()
    return [parse_line(line) for line in lines if line.startswith(f'{{"split": "{split}"')]


def read_prompts(path: Path, categories: Sequence[str] = ()) -> list[BenchPrompt]:
    """Read one prompt a line; return the prompts of the named categories, or all if none is named.

    Raises UsageError, with the line's number where a line is wrong.
    """
    try:
        lines = read_text_file(path).split("\n")  # splitlines would cut at U+2028, which JSON may hold
    except OSError as error:
        raise UsageError(f"cannot read the prompts in {path}: {error.strerror}") from error
    except FaultInLine as error:
        raise UsageError(f"cannot read the prompts in {format_place(path, error)}: {error}") from error
    prompts = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        try:
            prompts += [parse_line(line)] if line else []
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}", hint=f"a line is text, or {FORMS}") from error
    if not prompts:
        raise UsageError(f"there is no prompt in {path}")
    known = dict.fromkeys(prompt.category for prompt in prompts)
    if unknown := [category for category in categories if category not in known]:
        raise UsageError(f"there is no category {unknown[0]!r}", hint=f"the file has: {', '.join(known)}")
    return [prompt for prompt in prompts if not categories or prompt.category in categories]


def group_by_category(prompts: Sequence[BenchPrompt], most: int | None = None) -> dict[str, list[BenchPrompt]]:
    """Group prompts by category, in their order, at most `most` of each."""
    groups: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    return {category: found[:most] for category, found in groups.items()}


def parse_line(line: str) -> BenchPrompt:
    """Parse a line of a prompts file. Raises ValueError with what is wrong with it."""
    if line.startswith("["):
        return _parse_list(line)
    if not line.startswith("{"):
        return BenchPrompt(DEFAULT_CATEGORY, (Message("user", line),))
    try:
        entry = join_in_json(read_object(line))
    except NestedTooDeep:
        raise
    except ValueError:
        raise ValueError(f"this is not JSON: {line[:60]}") from None
    assert isinstance(entry, dict)  # it begins with a brace
    category = str(entry.get("category") or DEFAULT_CATEGORY)
    fields = {FIELD_FORMS[name]: value for name, value in entry.items() if name in FIELD_FORMS}
    if len(fields) != 1:
        raise ValueError(f"a line needs exactly one of prompt, messages and tokens, not {', '.join(fields) or 'none'}")
    ((form, value),) = fields.items()
    if form == "tokens" or (form == "prompt" and isinstance(value, list)):  # as /v1/completions takes them
        return BenchPrompt(category, tokens=_parse_tokens(value))
    return BenchPrompt(category, _parse_messages(value))


def _parse_list(line: str) -> BenchPrompt:
    """Parse a line that begins with [: token ids, messages, or else plain text."""
    try:
        read = join_in_json(read_json(line))
    except NestedTooDeep:
        raise
    except ValueError:
        read = []
    entries = read if isinstance(read, list) else []
    if entries and all(isinstance(entry, dict) for entry in entries):
        return BenchPrompt(DEFAULT_CATEGORY, _parse_messages(entries))
    if entries and not any(isinstance(entry, str) for entry in entries):
        return BenchPrompt(DEFAULT_CATEGORY, tokens=_parse_tokens(entries))
    return BenchPrompt(DEFAULT_CATEGORY, (Message("user", line),))


def _parse_messages(value: object) -> tuple[Message, ...]:
    if isinstance(value, str) and value:
        return (Message("user", value),)
    if not isinstance(value, list) or not value:
        raise ValueError("a prompt is text, and messages are a list of objects; neither is empty")
    return tuple(map(_parse_message, value))


def _parse_message(entry: object) -> Message:
    match entry:
        case {"role": str(role), "content": str(content)}:
            return Message(role, content)
        case {"role": str(role), "content": [*parts]}:
            return _parse_parts(role, parts)
    raise ValueError(f"a message has a role and a content, both text, not {str(entry)[:60]}")


def _parse_parts(role: str, parts: Sequence[object]) -> Message:
    """Parse text and image parts in OpenAI's format. Images must be data: URLs; nothing is fetched."""
    text, images = "", []
    for part in parts:
        match part:
            case {"type": "text", "text": str(more)}:
                text += more
            case {"type": "image_url", "image_url": {"url": str(url)}} if url.startswith("data:image/"):
                images.append(Image(_decode_image(url), len(text)))
            case _:
                allowed = "a part of a message is a text, or an image_url with a data: URL"
                raise ValueError(f"{allowed}, not {str(part)[:60]}")
    return Message(role, text, images=tuple(images))


def _decode_image(url: str) -> bytes:
    head, _, data = url.partition(",")
    try:
        picture = base64.b64decode(data, validate=True) if head.endswith(";base64") else b""
    except ValueError:
        picture = b""
    if not media_type(picture):
        raise ValueError(f"an image_url is base64 of {NAMES}, not {url[:60]}")
    return picture


def _parse_tokens(entry: object) -> tuple[int, ...]:
    if not isinstance(entry, list) or not entry or any(type(token) is not int or token < 0 for token in entry):
        raise ValueError("tokens are a list of whole numbers, not negative, and not empty")
    return tuple(entry)
