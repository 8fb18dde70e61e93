"""Typed access to the keys of one architecture: `block_count` of a llama model is `llama.block_count`.

Errors name the key that is missing or of the wrong kind. Callers know what the keys mean.
"""

from __future__ import annotations

from eaglelocal.core.records import dataclass
from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.values import ArrayValue

MAX_COUNT = 2**31 - 1  # llama.cpp keeps its hyperparameters in 32 bits
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class ArchitectureKeys:
    """The keys of a header: those below `prefix`, and others by full name (tokenizer., general.)."""

    header: Header
    prefix: str

    def _full(self, key: str) -> str:
        return f"{self.prefix}.{key}"

    @property
    def model_name(self) -> str:
        """The name in the file, else the file's name without its ending."""
        return self.text("general.name") or self.header.path.stem

    def error(self, problem: str) -> ModelFileError:
        return malformed_error(self.header.path.name, problem)

    def count(self, key: str) -> int:
        """Return a count. Raises ModelFileError where it is missing or not a count."""
        value = self.optional_count(key)
        if value is None:
            raise self.error(f"lacks the key {self._full(key)}")
        return value

    def optional_count(self, key: str) -> int | None:
        return self._check_count(self._full(key), self.header.metadata.get(self._full(key)))

    def _check_count(self, name: str, value: object) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise self.error(f"{name} is {_describe(value)}, not a count")
        return value

    def counts(self, key: str) -> tuple[int, ...] | None:
        """Return a count, or one count per layer, as a tuple; None where the key is absent."""
        name = self._full(key)
        value = self.header.metadata.get(name)
        if not isinstance(value, ArrayValue):
            single = self._check_count(name, value)
            return None if single is None else (single,)
        if not 0 < value.count <= MAX_LAYERS:
            raise self.error(f"{name} has {value.count} entries")
        return tuple(self._check_count(name, item) or 0 for item in self.header.array(name) or ())

    def flags_per_layer(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """Return a list of flags, one for each layer; None where the key is no list. Raises ModelFileError if short."""
        name = self._full(key)
        listed = self.header.array(name)
        if listed is None:
            return None
        if len(listed) < n_layer:
            raise self.error(f"{name} has {len(listed)} entries for {n_layer} layers")
        return tuple(bool(entry) for entry in listed[:n_layer])

    def flag(self, name: str) -> bool:
        """Return a bool by its full name; False where it is absent."""
        value = self.header.metadata.get(name, False)
        if not isinstance(value, bool):
            raise self.error(f"{name} is {_describe(value)}, not a bool")
        return value

    def real(self, name: str) -> float | None:
        value = self.header.metadata.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{name} is {_describe(value)}, not a number")
        return float(value)

    def text(self, name: str) -> str | None:
        value = self.header.metadata.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{name} is {_describe(value)}, not text")
        return value

    def count_by_name(self, name: str) -> int | None:
        """Return a count, such as a token id, by its full name; None where it is absent."""
        return self._check_count(name, self.header.metadata.get(name))


def _describe(value: object) -> str:
    return f"an array of {value.count}" if isinstance(value, ArrayValue) else repr(value)
