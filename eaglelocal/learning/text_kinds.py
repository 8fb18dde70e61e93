"""The kinds of text by which learning is judged, guessed from an answer's beginning by plain rules."""

from __future__ import annotations

KINDS = ("prose", "code", "data", "other letters")  # an index is stored: append only
PROSE, CODE, DATA, OTHER = range(len(KINDS))
MAX_CHARS = 2000  # of an answer that are looked at
CODE_MARKS = ("```", "def ", "return ", "import ", "#include", "function ", "const ", "SELECT ", "};", ");\n", "->")
MIN_CODE_MARKS = 2
MIN_OTHER_SHARE = 0.04  # of the letters


def name_kind(kind: int) -> str:
    """Return the name of a kind, which a later version of this program may have stored."""
    return KINDS[kind] if kind < len(KINDS) else "other"


def guess_kind(text: str, *, has_calls: bool = False) -> int:
    """Return the kind of an answer; one that calls tools is data.

    >>> [KINDS[guess_kind(text)] for text in ("Paris.", '{"city": "Paris"}', "```python\\nimport os", "Schöne Grüße")]
    ['prose', 'data', 'code', 'other letters']
    """
    start = text[:MAX_CHARS].lstrip()
    if has_calls or start.startswith(("{", "[", "```json")):
        return DATA
    if sum(mark in start for mark in CODE_MARKS) >= MIN_CODE_MARKS:
        return CODE
    letters = [char for char in start if char.isalpha()]
    num_other = sum(not char.isascii() for char in letters)
    return OTHER if letters and num_other >= MIN_OTHER_SHARE * len(letters) else PROSE
