"""Prometheus' text format as numbers by name. Labels are summed over, but for the one that is asked for."""

from __future__ import annotations

import math
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

MAX_POSITION_DIGITS = 3  # a label of anyone's server


class Samples:
    """What a /metrics page says. What it does not say is None, never zero."""

    def __init__(self, text: str) -> None:
        """Lines that are no Prometheus are passed over, with everything behind them."""
        self._values: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if math.isfinite(sample.value):
                        self._values[sample.name].append((sample.labels, sample.value))
        except ValueError:
            return

    def __contains__(self, prefix: object) -> bool:
        """Is there any name that begins so?"""
        return isinstance(prefix, str) and any(name.startswith(prefix) for name in self._values)

    def total(self, *names: str) -> float | None:
        """The sum over all labels, under the first of these names that there is."""
        for name in names:
            if name in self._values:
                return sum(value for _, value in self._values[name])
        return None

    def mean(self, *names: str) -> float | None:
        """Of shares: several engines of a server have a gauge each."""
        for name in names:
            if name in self._values:
                values = [value for _, value in self._values[name]]
                return sum(values) / len(values)
        return None

    def by_position(self, *names: str) -> tuple[float, ...] | None:
        """Sums by the label `position`, from 0."""
        for name in names:
            found: dict[int, float] = defaultdict(float)
            for labels, value in self._values.get(name, ()):
                position = labels.get("position", "")
                if position.isdecimal() and len(position) <= MAX_POSITION_DIGITS:
                    found[int(position)] += value
            if found:
                return tuple(found[depth] for depth in range(min(max(found) + 1, 64)))
        return None

    def label(self, name: str, label: str) -> str:
        """The first value of a label."""
        return next((labels[label] for labels, _ in self._values.get(name, ()) if label in labels), "")
