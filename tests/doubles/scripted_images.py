"""Images without pictures: a file states how many rows and positions it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglelocal.core.image import ImageRows
from eaglelocal.core.ports import TextPart
from eaglelocal.errors import RequestError

from .scripted_context import LetterVocabulary

BROKEN = b"broken"


@dataclass(frozen=True)
class ScriptedRows:
    key: bytes
    num_rows: int
    num_positions: int


def image_file(name: str, num_rows: int, num_positions: int | None = None, num_slices: int = 1) -> bytes:
    return f"{name} {num_rows} {num_rows if num_positions is None else num_positions} {num_slices}".encode()


class ScriptedReader:
    """A core.ports.ImageReader that puts a letter before each image, between its slices and after it."""

    def __init__(self, vocabulary: LetterVocabulary) -> None:
        self._vocabulary = vocabulary

    def measure(self, files: Sequence[bytes]) -> int:
        return len(files)

    def read(self, file: bytes, name: str) -> object:
        if file == BROKEN:
            raise RequestError(f"{name} cannot be read: it is broken", code="invalid_image")
        return file

    def stop(self) -> None:
        pass

    def tokenize(self, parts: Sequence[TextPart | object], *, add_special: bool) -> list[int | ImageRows]:
        return [piece for part in parts for piece in self.split(part)]

    def split(self, part: TextPart | object) -> list[int | ImageRows]:
        if isinstance(part, TextPart):
            return list(self._vocabulary.tokenize(part.text, add_special=False, parse_special=part.parse_special))
        assert isinstance(part, bytes)
        name, num_rows, num_positions, num_slices = part.split()
        slices = [ScriptedRows(b"%b/%d" % (name, i), int(num_rows), int(num_positions)) for i in range(int(num_slices))]
        return [1, *(piece for one in slices for piece in (one, 2))]

    def close(self) -> None:
        pass
