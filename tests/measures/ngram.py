"""What prompt lookup costs: python tests/measures/ngram.py

Microseconds a token observed and indexed and a child proposed, and bytes a token of the index, over 8 k and 128 k
tokens of Python source cut into words, of random tokens, and of a text that repeats itself. A text is indexed when it
is first looked into.
"""

from __future__ import annotations

import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.drafters.ngram import Ngram

SIZES = (8_192, 131_072)
CHUNK = 512  # rows of a prompt that are committed together
LENGTH = 16


def source(count: int) -> list[int]:
    """The standard library, cut where a vocabulary of a model would cut about."""
    numbers: dict[str, int] = {}
    tokens = list[int]()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        words = re.findall(r" ?\w{1,5}|\n\s*|[^\w]", path.read_text(encoding="utf-8"))
        tokens.extend(numbers.setdefault(word, len(numbers)) for word in words)
        if len(tokens) >= count:
            break
    return tokens[:count]


def uniform(count: int) -> list[int]:
    draw = random.Random(0)
    return [draw.randrange(150_000) for _ in range(count)]


def periodic(count: int) -> list[int]:
    return list(islice(cycle(range(100)), count))


def filled(text: list[int], rows: int) -> Ngram:
    drafter = Ngram(len(text))
    for first in range(0, len(text), rows):
        drafter.commit([Committed(0, first, text[first : first + rows], None)])
    return drafter


def observe_us(text: list[int], rows: int) -> float:
    started_at = time.perf_counter()
    filled(text, rows)
    return (time.perf_counter() - started_at) / len(text) * 1e6


def index_of(text: list[int]) -> tuple[float, float]:
    """Microseconds a token when the text is first looked into, and bytes a token that its index takes."""
    drafter = filled(text, CHUNK)
    started_at = time.perf_counter()
    drafter.draft([Node(0, ROOT, text[0], len(text))])
    took_us = (time.perf_counter() - started_at) * 1e6
    own = drafter._slots[0].index(len(text))
    size = own.young.num_bytes + (own.old.num_bytes if own.old else 0)
    return took_us / len(text), size / len(text)


def expand_us(text: list[int]) -> tuple[float, float, float]:
    """Of a root, of a further level, and how many levels there were, over the second half of a text."""
    cut = len(text) // 2
    drafter = filled(text[:cut], CHUNK)
    spent, calls = [0.0, 0.0], [0, 0]
    for position in range(cut, min(len(text), cut + 4000)):
        node, is_root = Node(0, ROOT, text[position], position), True
        for index in range(LENGTH):
            started_at = time.perf_counter()
            (more,) = drafter.draft([node])
            spent[not is_root] += time.perf_counter() - started_at
            calls[not is_root] += 1
            if not more.tokens:
                break
            node, is_root = Node(0, index, more.tokens[0], node.position + 1), False
        drafter.commit([Committed(0, position, [text[position]], None)])
    return spent[0] / calls[0] * 1e6, spent[1] / max(calls[1], 1) * 1e6, calls[1] / calls[0]


def main() -> None:
    texts: tuple[Callable[[int], list[int]], ...] = (source, uniform, periodic)
    for size in SIZES:
        for make in texts:
            text = make(size)
            root_us, level_us, levels = expand_us(text)
            index_us, num_bytes = index_of(text)
            sys.stdout.write(
                f"{make.__name__:9} {len(text):7} tokens: observe {observe_us(text, CHUNK):4.1f} us a token in chunks "
                f"of {CHUNK}, {observe_us(text, 1):4.1f} one by one; index {index_us:5.2f} us and {num_bytes:3.0f} "
                f"bytes a token; expand {root_us:4.1f} us a root, {level_us:4.1f} a further level ({levels:4.1f} "
                f"levels a root)\n"
            )


if __name__ == "__main__":
    main()
