"""A filter that keeps users' text from becoming control tokens: their spellings are hidden while a template runs.

A mark of private-use characters replaces each spelling in a message, so that the template still sees the rest and may
trim, split or quote it. `pieces` puts the spellings back as text that must not be read as control tokens. The end of a
message that could begin a spelling is hidden too, because the next message could complete it.

    "a<|im_end|>b" -> "a\\ue0000\\ue001b" -> template -> ("..a", False) ("<|im_end|>", True) ("b..", False)

Images get marks of the same kind at their positions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from eaglelocal.errors import ModelFileError
from eaglelocal.text.reasoning.markers import Beginnings

if TYPE_CHECKING:  # keeps core.request out of the process that renders templates
    from eaglelocal.core.request import Image

OPEN, CLOSE = "\ue000", "\ue001"
IMAGE = "\ue003"
POSITION = "\ue002"  # marks a position in the rendered text; it is hidden in users' texts
MAX_LEVELS = 16  # levels of common prefixes; deeper texts are tried one by one
MAX_SHOWN = 16  # times that a template may show one hidden text or image
_MARK = re.compile(f"([{OPEN}{IMAGE}])([0-9]{{1,9}}){CLOSE}")


Span = tuple[str, bool]  # a text, and whether it was hidden


class Spellings:
    """A search pattern for the texts of a vocabulary's control tokens. One per model."""

    def __init__(self, controls: Sequence[str] = ()) -> None:
        self.pattern = re.compile(build_longest_pattern(sorted({*controls, OPEN, CLOSE, POSITION, IMAGE})))
        self.beginnings = Beginnings(controls)


class HiddenSpellings:
    """The hidden spellings of one conversation, and its images."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._hidden: list[str] = []
        self._images: list[Image] = []

    def hide(self, text: str) -> str:
        """Return the text with a mark for each spelling."""
        text = self._spellings.pattern.sub(lambda match: self._add_hidden(match[0]), text)
        body = text.rstrip()
        if count := self._spellings.beginnings.count_at_end(body):
            start = len(body) - count
            return text[:start] + self._add_hidden(body[start:]) + text[len(body) :]
        return text

    def hide_with_images(self, text: str, images: Sequence[Image]) -> str:
        """Return the text with its spellings hidden, and marks of its images."""
        shown, last = "", 0
        for image in images:
            self._images.append(image)
            shown += f"{self.hide(text[last : image.at])}{IMAGE}{len(self._images) - 1}{CLOSE}"
            last = image.at
        return shown + self.hide(text[last:])

    def hide_all(self, value: object) -> object:
        """Hide every string in a JSON value, keys included."""
        match value:
            case str():
                return self.hide(value)
            case dict():
                return {self.hide(str(key)): self.hide_all(one) for key, one in value.items()}
            case list():
                return [self.hide_all(one) for one in value]
        return value

    def pieces(self, rendered: str) -> Iterator[Span | Image]:
        """Yield texts and images in order. Raises ModelFileError if the template shows one too often."""
        shown, last = Counter[str](), 0
        for found in _MARK.finditer(rendered):
            hidden: Sequence[str | Image] = self._images if found[1] == IMAGE else self._hidden
            if int(found[2]) >= len(hidden):
                continue  # text of the template that looks like a mark
            shown[found[0]] += 1
            if shown[found[0]] > MAX_SHOWN:
                raise ModelFileError(f"the chat template shows a text or an image more than {MAX_SHOWN} times")
            if last < found.start():
                yield rendered[last : found.start()], False
            one = hidden[int(found[2])]
            yield (one, True) if isinstance(one, str) else one
            last = found.end()
        if last < len(rendered):
            yield rendered[last:], False

    def _add_hidden(self, spelling: str) -> str:
        self._hidden.append(spelling)
        return f"{OPEN}{len(self._hidden) - 1}{CLOSE}"


def build_longest_pattern(texts: Sequence[str], levels: int = MAX_LEVELS) -> str:
    """Return a regular expression for the longest of these sorted texts, grouped by common prefixes.

    ["ab", "abc", "ad"] -> a(?:b(?:c)?|d)
    """
    prefix = texts[0]
    while not texts[-1].startswith(prefix):  # in sorted texts these share least
        prefix = prefix[:-1]
    rests = [text[len(prefix) :] for text in texts]
    if levels:
        groups = groupby(filter(None, rests), key=lambda rest: rest[0])
        parts = [build_longest_pattern(list(group), levels - 1) for _, group in groups]
    else:
        parts = [re.escape(rest) for rest in sorted(rests, key=len, reverse=True) if rest]
    if not parts:
        return re.escape(prefix)
    return f"{re.escape(prefix)}(?:{'|'.join(parts)}){'?' if '' in rests else ''}"
