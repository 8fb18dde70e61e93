"""The state that the monitor shows at one moment. Plain data."""

from __future__ import annotations

from dataclasses import field

from eaglelocal.core.records import dataclass
from eaglelocal.probe.load_gauges import MachineGauge
from eaglelocal.tui.panel.feed import PanelFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLoads:
    """The load of the device that answers, in each of the last seconds, the newest last. None: not known."""

    label: str = ""
    shares: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSnapshot:
    """A frame of the monitor, the machine's load, and the server that they belong to."""

    url: str
    frame: PanelFrame
    machine: MachineGauge | None  # None: not known yet
    loads: RecentLoads = field(default_factory=RecentLoads)
    is_local: bool = True  # else the server is on another machine, whose load is unknown
    is_paused: bool = False
