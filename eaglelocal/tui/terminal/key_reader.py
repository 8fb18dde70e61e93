"""Turn the bytes that a terminal sends into Textual's events, and raise nothing, whatever the bytes are.

Textual's own reader ends its app at the first byte that is not UTF-8, and at key codes that no character has. It takes
all keys for pasted text once the end of a paste is lost, and a pasted escape for a key.
Knows bytes and events, but no file and no thread.
"""

from __future__ import annotations

import re
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress

from textual import events
from textual._parser import ParseError
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message
from textual.messages import InBandWindowResize

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
REMAINDER_S = 0.5  # to wait for the rest of a UTF-8 character, before U+FFFD takes its place
SEQUENCES = re.compile("(?=\x1b)")
MAX_SEQUENCE = 33  # characters: Textual's parser gives up at that length
PASTE_GAP_S = 3.0  # seconds without a byte, after which the end of a paste counts as lost
LEAVING = ("ctrl+c", "ctrl+d", "ctrl+q")  # terminals leave these characters out of what they paste
UNASKED = (events.Resize, InBandWindowResize)  # reports of modes that a program before this one left on


class Paste:
    """The text of a paste that has begun. Its end may come in parts, or never."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._newest = ""  # perhaps with the beginning of the end

    def feed(self, text: str) -> str | None:
        """Add a text; return what follows the end of the paste, None if it goes on."""
        text = self._newest + text
        pasted, end, rest = text.partition(BRACKETED_PASTE_END)
        until = len(pasted) if end else max(len(pasted) - len(BRACKETED_PASTE_END) + 1, 0)
        self._parts.append(pasted[:until])
        self._newest = pasted[until:]
        return rest if end else None

    def finish(self) -> events.Paste:
        """Return the paste, without the beginning of an end that was cut off."""
        cut = self._newest.rfind("\x1b")
        is_end = cut >= 0 and BRACKETED_PASTE_END.startswith(self._newest[cut:])
        text = "".join(self._parts) + (self._newest[:cut] if is_end else self._newest)
        return events.Paste(text.replace("\0", ""))


class KeyReader:
    """A reader of one terminal's keys, in the order of its bytes.

    If the end of a paste is lost, the paste ends after PASTE_GAP_S without a byte, or at a key that leaves or
    interrupts. A user who sees nothing happen presses such a key again and again, so the gap might never come.

    reader.feed(os.read(fd, 4096))  # whenever there is something
    reader.tick()                   # ten times a second: an escape that stays alone is a key
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._parser = XTermParser()
        self._fed_at = 0.0
        self._newest = ""  # characters that were parsed
        self._paste: Paste | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the events of `data`. Bytes that are not UTF-8 become U+FFFD; a character may come in several parts."""
        self._fed_at = self._clock()
        if self._paste is not None and _is_leaving(data):
            yield from self._end_paste()
        yield from self._parse(self._decoder.decode(data))

    def tick(self) -> Iterator[Message]:
        """Yield events that only a pause makes certain, such as a lone escape."""
        if self._paste is not None and self._clock() - self._fed_at >= PASTE_GAP_S:
            yield from self._end_paste()
        if self._decoder.getstate()[0] and self._clock() - self._fed_at >= REMAINDER_S:
            yield from self._parse(self._decoder.decode(b"", final=True))
            self._decoder.reset()
        yield from self._events(lambda: self._parser.tick())

    def close(self) -> None:
        """Drop an unfinished sequence when the terminal is left."""
        with suppress(EOFError, ParseError):
            list(self._parser.feed(""))

    def _parse(self, text: str) -> Iterator[Message]:
        while text:
            if self._paste is None:
                text = yield from self._parse_keys(text)
            elif (rest := self._paste.feed(text)) is None:
                return
            else:
                yield from self._end_paste()
                text = rest

    def _parse_keys(self, text: str) -> Generator[Message, None, str]:
        """Parse keys until a paste begins, and return what follows its beginning.

        An escape sequence is parsed character by character, so that a failing one drops nothing else.
        """
        at = 0
        for run in SEQUENCES.split(text):
            for part in filter(None, (*run[:MAX_SEQUENCE], run[MAX_SEQUENCE:])):
                at += len(part)
                self._newest = (self._newest + part)[-len(BRACKETED_PASTE_START) :]
                if self._newest == BRACKETED_PASTE_START:
                    self._parser, self._paste = XTermParser(), Paste()
                    return text[at:]
                yield from self._events(lambda part=part: self._parser.feed(part))  # type: ignore[misc]
        return ""

    def _end_paste(self) -> Iterator[Message]:
        if self._paste is not None:
            yield self._paste.finish()
        self._paste = None

    def _events(self, parse: Callable[[], Iterable[Message]]) -> Iterator[Message]:
        """Yield the events of one parser call; drop a sequence that the parser fails at."""
        found: list[Message] = []
        try:
            found.extend(parse())
        except Exception:  # numbers too large for a character or a size, and other odd input
            self._parser = XTermParser()
        self._parser.mouse_pixels = False  # at a report of pixel sizes the parser concludes that the mouse sends pixels
        yield from (_replace_surrogates(event) for event in found if not isinstance(event, UNASKED))


def _is_leaving(data: bytes) -> bool:
    """Return whether one read contains only keys that leave or interrupt."""
    found: list[Message] = []
    if len(data) <= MAX_SEQUENCE:
        with suppress(Exception):  # any other failure of the parser
            found.extend(XTermParser().feed(data.decode()))
    return bool(found) and all(isinstance(event, events.Key) and event.key in LEAVING for event in found)


def _replace_surrogates(event: Message) -> Message:
    """Return the event, with half a surrogate pair (which a key code can spell) replaced by U+FFFD."""
    if isinstance(event, events.Key) and any("\ud800" <= char <= "\udfff" for char in event.character or ""):
        return events.Key("replacement_character", REPLACEMENT)
    return event
