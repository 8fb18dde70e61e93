"""How often the screen is drawn: eight times a second at best, and less as soon as that costs more than its share.

Pure: told what drawing cost. On two cores every per cent of one is a per cent of the engine's speed.
"""

from __future__ import annotations

from collections import deque

FASTEST_S, SLOWEST_S = 0.125, 1.0  # between two frames
LONGEST_S = 5.0  # and after a frame that costs more than SLOWEST_S pays for: one long block that grows
NUM_RECENT, NUM_DEAR = 8, 3  # of so many frames so many are dear: it is no start or load, which is forgiven
IDLE_S = 0.5  # while nothing moves
SHARE = 0.022  # of one core that drawing may take; other threads of a screen take more than half a per cent besides
MEMORY = 0.7  # of the cost of a frame, kept from frame to frame


class Pace:
    """The gap until the next frame."""

    def __init__(self) -> None:
        self._cost_s = 0.0
        self._made_s: deque[float] = deque([0.0] * NUM_RECENT, maxlen=NUM_RECENT)

    def drawn(self, cpu_s: float) -> None:
        """What the screen's thread computed since the last frame, everything it does included."""
        cpu_s = min(cpu_s, SHARE * SLOWEST_S)  # a start or a load is no frame, and not remembered as one
        self._cost_s = MEMORY * self._cost_s + (1.0 - MEMORY) * cpu_s if self._cost_s else cpu_s

    def made(self, cpu_s: float) -> None:
        """What making the text of this frame took: no key that is typed meanwhile is part of it."""
        self._made_s.append(cpu_s)

    def gap_s(self, *, is_moving: bool, late_s: float = 0.0) -> float:
        """Seconds. `late_s`: by how much the last frame came later than it was meant to: the terminal is slow."""
        if (pays_s := self._dear_s / SHARE) > SLOWEST_S:
            return min(pays_s, LONGEST_S)
        fastest = FASTEST_S if is_moving else IDLE_S
        return min(max(fastest, self._cost_s / SHARE, 2.0 * late_s), SLOWEST_S)

    @property
    def _dear_s(self) -> float:
        """What the last frame took, as far as others did too. It is paid for at once, and then forgotten."""
        return min(self._made_s[-1], sorted(self._made_s)[-NUM_DEAR])
