"""Compare names as people write them: case, spaces, dashes and dots do not matter, nor does where digits begin.

Knows how names are written, not which there are.
"""

from __future__ import annotations

import re
from collections import Counter

MAKERS = frozenset({"nvidia", "geforce", "amd", "radeon", "apple", "intel"})
FAMILIES = frozenset(
    {"rtx", "gtx", "rx", "arc", "tesla", "blackwell"}
)  # which people leave out: a number identifies the card
SYNONYMS = {"mobile": "laptop"}
_WORD = re.compile(r"[a-z]+|\d+")
_SIZE_UNIT = re.compile(r"(?<=\d)\s*gi?b\b")
_COUNT = re.compile(r"(?P<first>[1-9]\d?)\s*x(?P<name>.+)|(?P<named>.*[\d\s_-])x\s*(?P<last>[1-9]\d?)")


def squeeze(name: str) -> str:
    """Return the letters and digits of a name, in lower case.

    >>> squeeze("Qwen3.8 27B"), squeeze("qwen38-27b")
    ('qwen3827b', 'qwen3827b')
    """
    return "".join(filter(str.isalnum, name.lower()))


def split_words(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a machine's name, without makers and the unit of its memory.

    >>> split_words("NVIDIA RTX3090 24GB"), split_words("m4 max 64")
    (('rtx', '3090', '24'), ('m', '4', 'max', '64'))
    """
    words = _WORD.findall(_SIZE_UNIT.sub("", name.lower()))
    return tuple(SYNONYMS.get(word, word) for word in words if word not in MAKERS)


def split_count(name: str) -> tuple[str, int]:
    """Split off how many of a machine's cards are meant.

    >>> split_count("2x3090"), split_count("rtx 3090 x4"), split_count("rtx-3090")
    (('3090', 2), ('rtx 3090', 4), ('rtx-3090', 1))
    """
    match = _COUNT.fullmatch(name.strip().lower())
    if match is None:
        return name, 1
    return (match["name"] or match["named"]).strip(" -_"), int(match["first"] or match["last"])


def count_left_out(written: str, name: str, memory_gib: int) -> int | None:
    """Return how many words `written` leaves out of a machine's name; None if it is not that name.

    A family (`rtx`) and the size of the memory may be left out, nothing else.
    """
    given, words = split_words(written), split_words(name)
    left_out = Counter(words) - Counter(given)
    is_named = bool(given) and not Counter(given) - Counter(words)
    return left_out.total() if is_named and left_out.keys() <= FAMILIES | {str(memory_gib)} else None
