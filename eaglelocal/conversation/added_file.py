"""A text file that a question quotes: from a path that people type to checked text under a short mark.

A file that is no text, or more of it than a model reads, is refused here, by name.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from eaglelocal.core.amounts import count_noun, format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import FaultInLine, decode_text, make_printable
from eaglelocal.core.user_paths import expand_path, quote_path
from eaglelocal.errors import UsageError

MAX_TEXT_BYTES = 1_000_000  # about 300 000 tokens, more than most contexts hold


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A text file. `label`: what a question shows in its place; `quoted`: what is sent."""

    name: str
    text: str

    @property
    def label(self) -> str:
        """The name and the length: `[notes.md, 312 lines]`."""
        num_lines = self.text.rstrip("\n").count("\n") + 1
        size = count_noun(num_lines, "line") if num_lines > 1 else count_noun(len(self.text), "character")
        return f"[{make_printable(self.name)}, {size}]"

    @property
    def quoted(self) -> str:
        """The name and the text, in a fence that is longer than any in the text."""
        return f"{make_printable(self.name)}:\n{fence_code(self.text.rstrip(chr(10)))}"


def fence_code(text: str) -> str:
    """Return a text as a code block, whose fence is longer than any in it."""
    fence = "`" * (max(map(len, re.findall("`{3,}", text)), default=2) + 1)
    return f"{fence}\n{text}\n{fence}"


def read_added_file(path: str) -> AddedFile:
    """Read a text file. Raises UsageError with its path if it is missing, no file, binary, empty or too long."""
    found = expand_path(path.strip())
    text = _decode(found, _read_file(found))
    if not text.strip():
        raise UsageError(f"{found} is empty")
    return AddedFile(found.name, text)


def _read_file(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file"
            raise UsageError(f"{path} is {what}", hint=f"/add {path}/FILE" if path.is_dir() else "")
        if status.st_size > MAX_TEXT_BYTES:
            what = f"{path} has {format_disk(status.st_size)}, a question at most {format_disk(MAX_TEXT_BYTES)}"
            raise UsageError(what, hint=f"head -c 50000 {quote_path(path)} > part.txt")
        with path.open("rb") as file:
            return file.read(MAX_TEXT_BYTES + 1)[:MAX_TEXT_BYTES]  # it may have grown
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}", hint=f"ls {quote_path(path.parent)}") from None


def _decode(path: Path, data: bytes) -> str:
    if b"\0" in data:
        raise UsageError(f"{path} is not text")
    try:
        return decode_text(data)
    except FaultInLine as problem:
        hint = f"iconv -f WINDOWS-1252 -t UTF-8 {quote_path(path)} > utf8.txt"
        raise UsageError(f"{path} is not UTF-8 text: line {problem.line}: {problem}", hint=hint) from None


# ---- paths as they are typed after `@`: a blank in one is written with a backslash
_MENTION = re.compile(r"(?<!\S)@((?:\\.|[^\s\\])*)")
_ESCAPED_MENTION = re.compile(r"(?<!\S)\\(@\S+)")
_LAST_MENTION = re.compile(rf"{_MENTION.pattern}\Z")
_MEANT_AS_PATH = re.compile(r"(?:\.{0,2}|~)/+[^/]")
_SENTENCE_ENDS = ".,;:!?)"


def find_mention(typed: str) -> tuple[int, str] | None:
    """Return where a path begins that is being typed after `@` at the end of a text, and the path; or None.

    >>> find_mention("compare @my\\\\ no"), find_mention("me@example.com")
    ((8, 'my no'), None)
    """
    found = _LAST_MENTION.search(typed)
    return None if found is None else (found.start(), _unescape(found[1]))


def find_mentions(text: str) -> list[tuple[int, int, str]]:
    """Return where each `@path` in a whole question begins and ends, and its path.

    A word is a path if it names a file, or can only be meant as one: `@/dev/zero`, `@./missing`, `@missing.txt`, but
    not `@alice` or `@app.route`.
    A folder is none: a question may be about `@src`, or import from `@types/node`.
    """
    found = []
    for mention in _MENTION.finditer(text):
        words = [mention[1], mention[1].rstrip(_SENTENCE_ENDS)]
        paths = [(mention.start() + 1 + len(word), _unescape(word)) for word in words]
        here = next((each for each in paths if names_file(each[1])), paths[1])
        if names_file(here[1]) or _MEANT_AS_PATH.match(here[1]) or _has_known_suffix(here[1]):
            found.append((mention.start(), *here))
    return found


def find_escaped_mentions(text: str) -> list[int]:
    r"""Return where a backslash makes text of what would be a path: in `mail \@site.org`, not in `\@maketitle`."""
    return [found.start() for found in _ESCAPED_MENTION.finditer(text) if find_mentions(found[1])]


def escape_mentions(text: str) -> str:
    """Return a text from elsewhere in which no word is a path: what is pasted adds no file."""
    for begin, _, _ in reversed(find_mentions(text)):
        text = f"{text[:begin]}\\{text[begin:]}"
    return text


def _unescape(typed: str) -> str:
    return re.sub(r"\\(.)", r"\1", typed)


def names_file(path: str) -> bool:
    try:
        found = expand_path(path)
        return found.exists() and not found.is_dir()
    except (OSError, UsageError):
        return False


def _has_known_suffix(path: str) -> bool:
    from pygments.lexers import find_lexer_class_for_filename  # few questions need it

    return "." in path and find_lexer_class_for_filename(path) is not None


def write_mention(path: str) -> str:
    """Return a path as `find_mention` reads it: `@my\\ notes/`."""
    return "@" + re.sub(r"([\s\\])", r"\\\1", path)
