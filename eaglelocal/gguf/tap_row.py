"""The row of tapped states that a head fuses, of one to eight layers, in a graph that reads those of three.

llama.cpp's `eagle3` graph reads rows of `eagle3.target_layers`, three, times `eagle3.target_hidden_size`. Where a head
taps another number, keys of ours name its layers, and llama.cpp's own state a row as wide as theirs, up to zeros at its
end. The engine fills the rows itself, so that nothing else differs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import ArchitectureKeys

if TYPE_CHECKING:  # numpy is imported when a file is written
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

LAYERS_KEY = "eaglelocal.target_layers"
WIDTH_KEY = "eaglelocal.target_hidden_size"
GRAPH_TAPS, MAX_TAPS = 3, 8
MULTIPLE = 32  # of a third of the graph's row, for quantized types


def find_third(num_floats: int) -> int:
    """Return a third of the graph's row that holds so many numbers."""
    return -(-num_floats // (GRAPH_TAPS * MULTIPLE)) * MULTIPLE


def spread_taps(num_taps: int, n_layer: int) -> tuple[int, ...]:
    """Return so many layers, from the third to the third from last, evenly spread.

    >>> spread_taps(3, 30), spread_taps(1, 30)
    ((2, 15, 27), (27,))
    """
    first, last, gaps = 2, n_layer - 3, num_taps - 1
    if not gaps:
        return (last,)
    return tuple(first + ((last - first) * tap + gaps // 2) // gaps for tap in range(num_taps))


@dataclass(frozen=True, slots=True)
class TapRow:
    """The tapped layers, by their inputs, and the width of each state."""

    layers: tuple[int, ...]
    width: int

    @classmethod
    def read(cls, keys: ArchitectureKeys, graph_layers: tuple[int, ...]) -> TapRow:
        """Read the row of a head's file; `graph_layers` are those that llama.cpp reads there."""
        layers = keys.header.array(LAYERS_KEY)
        if layers is None:
            return cls(graph_layers, keys.count("target_hidden_size"))
        ids = tuple(layer for layer in layers if isinstance(layer, int))
        if len(ids) != len(layers):
            raise keys.error(f"{LAYERS_KEY} is {layers}, not layer ids")
        return cls(ids, keys.count_by_name(WIDTH_KEY) or 0)

    @property
    def size(self) -> int:
        """The numbers of a row."""
        return len(self.layers) * self.width

    @property
    def third(self) -> int:
        """The target's hidden size as llama.cpp reads it."""
        return self.width if len(self.layers) == GRAPH_TAPS else find_third(self.size)

    @property
    def graph_size(self) -> int:
        """The numbers of a row in the graph: zeros follow the states."""
        return GRAPH_TAPS * self.third

    def name_layers(self) -> dict[str, tuple[int, ...]]:
        """Return the keys of the layers alone."""
        if len(self.layers) == GRAPH_TAPS:
            return {"eagle3.target_layers": self.layers}
        return {"eagle3.target_layers": (self.layers * GRAPH_TAPS)[:GRAPH_TAPS], LAYERS_KEY: self.layers}

    def keys(self) -> dict[str, int | tuple[int, ...]]:
        """Return the keys of a head's file."""
        own = {} if len(self.layers) == GRAPH_TAPS else {WIDTH_KEY: self.width}
        return {"eagle3.target_hidden_size": self.third, **self.name_layers(), **own}

    def pad(self, values: Floats) -> Floats:
        """Return values [..., size] with zeros up to the graph's row."""
        import numpy as np

        return np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, self.graph_size - self.size)])

    def pad_gains(self, gains: Floats) -> Floats:
        """Return the gains [size] of a norm of the whole row for the graph's, where zeros lower its mean square.

        The norm's epsilon then counts graph_size / size times, which changes less than rounding does.
        """
        return self.pad(gains) * self._norm_gain

    def cut_gains(self, gains: Floats) -> Floats:
        """Return the inverse of `pad_gains`."""
        return gains[: self.size] / self._norm_gain

    @property
    def _norm_gain(self) -> float:
        return math.sqrt(self.size / self.graph_size)
