"""Keep the load of the machine over the last seconds, for a graph. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque

from eaglelocal.probe.load_gauges import MachineGauge
from eaglelocal.tui.monitor.monitor_snapshot import RecentLoads

KEPT_S = 180
HELD_S = 3  # for which a value stands for the seconds after it, in which no frame was drawn


class LoadHistory:
    """The load of the busiest GPU, or of the processor where there is no GPU, in each of the last KEPT_S seconds."""

    def __init__(self) -> None:
        self._label = ""
        self._loads: deque[tuple[int, float]] = deque(maxlen=KEPT_S)  # (second, share)

    def add(self, machine: MachineGauge | None, now: float) -> None:
        """Add a reading; of several in one second the newest counts."""
        if machine is None:
            return
        of_gpus = [gpu.load for gpu in machine.gpus if gpu.load is not None]
        load = max(of_gpus) if of_gpus else machine.cpu_load
        if load is not None:
            self._label = "CPU" if not of_gpus else "GPU" if len(of_gpus) == 1 else "busiest GPU"
            if self._loads and self._loads[-1][0] == int(now):
                self._loads.pop()
            self._loads.append((int(now), load))

    def read(self, now: float) -> RecentLoads:
        """Return the loads of the last KEPT_S full seconds."""
        known = dict(self._loads)
        shares = list[float | None]()
        value, age = None, 0
        for second in range(int(now) - KEPT_S, int(now)):
            value, age = (known[second], 0) if second in known else (value, age + 1)
            shares.append(value if age < HELD_S else None)
        return RecentLoads(label=self._label, shares=tuple(shares))
