"""Fits the constants of the planner's speeds to published ones, for public_speeds.py; checks them on other cards."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

from speed_rows import Case

from eaglelocal.planning import speed

EFFICIENCIES = [percent / 100 for percent in range(76, 97, 2)]
FIRST_STEP, LAST_STEP = 0.4, 0.02  # relative, of the search
MOST_ERROR = 0.5  # that a measurement counts with: those further off are of something else


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted. `layer_s`: by the keys of KERNELS."""

    efficiency: float
    row_share: float
    layer_s: Mapping[str, float]


CURRENT = Constants(
    speed.EFFICIENCY, speed.ROW_SHARE, {name: kernels.layer_s for name, kernels in speed.KERNELS.items()}
)


@dataclass(frozen=True, slots=True)
class Errors:
    """log(predicted / measured) of a case; None: not measured."""

    case: Case
    plain: float | None
    drafted: float | None

    @property
    def gain(self) -> float | None:
        return None if self.plain is None or self.drafted is None else self.drafted - self.plain

    @property
    def known(self) -> list[float]:
        return [error for error in (self.plain, self.drafted) if error is not None]


@contextmanager
def replaced_constants(constants: Constants) -> Iterator[None]:
    """Predict with other constants."""
    kept = speed.EFFICIENCY, speed.ROW_SHARE, speed.KERNELS
    speed.EFFICIENCY, speed.ROW_SHARE = constants.efficiency, constants.row_share
    changed = {name: kept[2][name]._replace(layer_s=layer_s) for name, layer_s in constants.layer_s.items()}
    speed.KERNELS = MappingProxyType({**kept[2], **changed})
    try:
        yield
    finally:
        speed.EFFICIENCY, speed.ROW_SHARE, speed.KERNELS = kept


def list_errors(cases: Iterable[Case], constants: Constants) -> list[Errors]:
    with replaced_constants(constants):
        return [Errors(case, *case.list_errors()) for case in cases]


# ---- the search
def fit(cases: Sequence[Case]) -> Constants:
    """Return the constants with the least errors of plain speeds, then the share of the flops with those of gains.

    Fitted to gains, so that a card that is slow by itself does not make its drafts look expensive.
    """
    found = [fit_layers(cases, replace(CURRENT, efficiency=efficiency)) for efficiency in EFFICIENCIES]
    best = min(found, key=lambda constants: mean_error(cases, constants, lambda errors: errors.plain))

    def loss(row_share: float) -> float:
        return mean_error(cases, replace(best, row_share=row_share), lambda errors: errors.gain)

    return replace(best, row_share=descend(best.row_share, loss))


def fit_layers(cases: Sequence[Case], constants: Constants) -> Constants:
    """Fit the time of a layer of each kind of device that was measured."""
    layer_s = dict(constants.layer_s)
    for name in {case.kernels for case in cases}:
        alike = [case for case in cases if case.kernels == name]

        def loss(tried_s: float, name: str = name, alike: Sequence[Case] = alike) -> float:
            tried = replace(constants, layer_s={**layer_s, name: tried_s})
            return mean_error(alike, tried, lambda errors: errors.plain)

        layer_s[name] = descend(layer_s[name], loss)
    return replace(constants, layer_s=layer_s)


def mean_error(cases: Sequence[Case], constants: Constants, pick: Callable[[Errors], float | None]) -> float:
    """Return the mean size of the errors, where n measurements of a card count as the root of n."""
    counts = Counter(case.row.card for case in cases)
    total = weights = 0.0
    for errors in list_errors(cases, constants):
        if (error := pick(errors)) is not None:
            weight = counts[errors.case.row.card] ** -0.5
            total, weights = total + weight * min(abs(error), MOST_ERROR), weights + weight
    return total / max(weights, 1e-9)


def descend(value: float, loss: Callable[[float], float]) -> float:
    """Change a value by smaller and smaller factors, as long as the loss falls."""
    best, step = loss(value), FIRST_STEP
    while step > LAST_STEP:
        lost, tried = min((loss(each), each) for each in (value * (1 + step), value / (1 + step)))
        if lost < best - 1e-7:
            best, value = lost, tried
        else:
            step /= 2
    return value


# ---- predictions of cards that were not fitted to
def leave_cards_out(cases: Sequence[Case]) -> list[Errors]:
    """Return the errors of each card, with the constants fitted to all others of some kind like it."""
    found: list[Errors] = []
    for card in sorted({case.row.card for case in cases}):
        found += predict_others(cases, {each.row.card for each in cases} - {card})
    return found


def swap_halves(cases: Sequence[Case]) -> list[Errors]:
    """Return the errors of each half of the cards, with the constants fitted to the other half."""
    half = choose_half(cases)
    return [
        *predict_others(cases, half),
        *predict_others(cases, {case.row.card for case in cases} - half),
    ]


def choose_half(cases: Sequence[Case]) -> set[str]:
    """Return every other card of each kind, in the order of a hash, so that the choice stays as lines are added."""
    half: set[str] = set()
    for name in {case.kernels for case in cases}:
        cards = {case.row.card for case in cases if case.kernels == name}
        half.update(sorted(cards, key=lambda card: hashlib.sha256(card.encode()).digest())[::2])
    return half


def predict_others(cases: Sequence[Case], cards: set[str]) -> list[Errors]:
    """Return the errors of all other cards, with the constants fitted to these, where those have the same kernels."""
    fitted = [case for case in cases if case.row.card in cards]
    kinds = {case.kernels for case in fitted}
    others = [case for case in cases if case.row.card not in cards and case.kernels in kinds]
    return list_errors(others, fit(fitted)) if others else []


def quantile(errors: Sequence[float], share: float) -> float:
    """Return the size, as a share of the measured speed, that this share of the errors does not exceed."""
    sizes = sorted(math.expm1(abs(error)) for error in errors)
    return sizes[max(math.ceil(share * len(sizes)) - 1, 0)]
