"""Asks whether this machine runs on a battery. Never raises."""

from __future__ import annotations


def runs_on_battery() -> bool:
    """Return whether a battery feeds the machine; False where there is none, or the system does not tell."""
    try:
        import psutil

        battery = psutil.sensors_battery()
    except Exception:  # drivers report nonsense in many ways
        return False
    return battery is not None and battery.power_plugged is False
