"""Turn the bytes that a terminal sends into Textual's events, and raise nothing, whatever the bytes are.

Textual's own reader ends its app at the first byte that is not UTF-8, and at key codes that no character has.
Knows bytes and events, but no file and no thread.
"""

from __future__ import annotations

import re
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from textual import events
from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.message import Message

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
REMAINDER_S = 0.5  # to wait for the rest of a UTF-8 character, before U+FFFD takes its place
SEQUENCES = re.compile("(?=\x1b)")
MAX_SEQUENCE = 33  # characters: Textual's parser gives up at that length
MAX_CELLS = 10_000  # columns or rows; a resize to more is ignored


class KeyReader:
    """A reader of one terminal's keys, in the order of its bytes.

    reader.feed(os.read(fd, 4096))  # whenever there is something
    reader.tick()                   # ten times a second: an escape that stays alone is a key
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._parser = XTermParser()
        self._fed_at = 0.0

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the events of `data`. Bytes that are not UTF-8 become U+FFFD; a character may come in several parts."""
        self._fed_at = self._clock()
        yield from self._parse(self._decoder.decode(data))

    def tick(self) -> Iterator[Message]:
        """Yield events that are certain only because nothing follows, such as a lone escape."""
        if self._decoder.getstate()[0] and self._clock() - self._fed_at >= REMAINDER_S:
            yield from self._parse(self._decoder.decode(b"", final=True))
            self._decoder.reset()
        yield from self._events(lambda: self._parser.tick())

    def close(self) -> None:
        """Drop an unfinished sequence when the terminal is left."""
        with suppress(EOFError, ParseError):
            list(self._parser.feed(""))

    def _parse(self, text: str) -> Iterator[Message]:
        """Parse an escape sequence character by character, so that a failing one drops nothing else."""
        for run in filter(None, SEQUENCES.split(text)):
            for part in (*run[:MAX_SEQUENCE], run[MAX_SEQUENCE:]):
                if part:
                    yield from self._events(lambda part=part: self._parser.feed(part))  # type: ignore[misc]

    def _events(self, parse: Callable[[], Iterable[Message]]) -> Iterator[Message]:
        """Yield the events of one parser call; drop a sequence that the parser fails at."""
        found: list[Message] = []
        try:
            found.extend(parse())
        except Exception:  # numbers too large for a character or a size, and whatever else terminals may send
            self._parser = XTermParser()
        yield from filter(is_plausible, map(_replace_surrogates, found))


def _replace_surrogates(event: Message) -> Message:
    """Return the event, with half a surrogate pair (which a key code can spell) replaced by U+FFFD."""
    if isinstance(event, events.Key) and any("\ud800" <= char <= "\udfff" for char in event.character or ""):
        return events.Key("replacement_character", REPLACEMENT)
    return event


def is_plausible(event: Message) -> bool:
    if isinstance(event, events.Resize):
        return 0 < event.size.width <= MAX_CELLS and 0 < event.size.height <= MAX_CELLS
    return True
