"""Options, a machine and a goal -> the plan, and why nothing else. Pure.

Best first: every way to run has a bound, its score if it fitted whole at the roomiest setup. The best bound is weighed
first; one that fits at some setup goes back with its true score, one that does not is tried with layers on the host, or
rejected. The first that comes back is the best there is, so most of the catalogue is never weighed. What is chosen fits
by construction: it was weighed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eaglelocal.catalog.drafts import NGRAM
from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.planner.goals import COMFORTABLE_CTX, Comfort, Goal, score
from eaglelocal.planner.machine import Rig
from eaglelocal.planner.options import DraftWay, Option
from eaglelocal.planner.speed import Prediction
from eaglelocal.planner.weighing import Scale, Setup, Weighed

CONTEXTS = (32768, 16384, COMFORTABLE_CTX, 4096)  # where none is asked for
KV_TYPES = ("f16", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    goal: Goal
    ctx: int | None = None
    num_slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An option with what drafts, as it would run."""

    option: Option
    draft: DraftWay
    setup: Setup
    gpu_layers: int | None  # None: all
    prediction: Prediction
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    way: Way
    weighed: Weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """`way`, `weighed`: as far as it came. `draft`: only where it is the draft that is rejected."""

    option: Option
    draft: str
    reason: str
    way: Way | None = None
    weighed: Weighed | None = None

    @property
    def missing_bytes(self) -> int | None:
        """Of the room that lacks most; None where it was not weighed or fits."""
        return None if self.weighed is None or self.weighed.fits else self.weighed.worst.missing_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`rejected`: the nearest to being chosen first."""

    rig: Rig
    asked: Asked
    chosen: Chosen | None
    rejected: tuple[Rejected, ...]

    @property
    def nearest(self) -> Rejected | None:
        """Where nothing fits: what lacks least."""
        missed = [each for each in self.rejected if each.missing_bytes is not None]
        return min(missed, key=lambda each: each.missing_bytes or 0, default=None) if self.chosen is None else None


def plan(
    options: Sequence[Option], rig: Rig, asked: Asked, *, measured: Mapping[str, MeasuredCosts] | None = None
) -> Outcome:
    """`measured`: what decodes really cost here, by the reference of an option."""
    search = _Search(rig, asked, measured or {})
    chosen = search.run(options)
    rejected = [*search.rejected, *search.outdone(chosen), *unusable(options)]
    return Outcome(rig=rig, asked=asked, chosen=chosen, rejected=tuple(rejected))


def setups_for(option: Option, asked: Asked) -> tuple[Setup, ...]:
    """Contexts, cache types and windows to try, roomiest first; never beyond what the model was trained for."""
    most = option.max_context or max(CONTEXTS)
    contexts = (asked.ctx,) if asked.ctx else tuple(ctx for ctx in CONTEXTS if ctx <= most) or (most,)
    windows = (True, False) if option.shape.has_windows else (True,)
    return tuple(
        Setup(n_ctx=ctx, kv_type=kv_type, whole_windows=whole)
        for ctx in contexts
        for kv_type in KV_TYPES
        for whole in windows
    )


def small_setups(setups: Sequence[Setup]) -> Iterator[Setup]:
    """Those for a target that does not fit its GPUs: no more context than is comfortable, no whole windows."""
    contexts = {setup.n_ctx for setup in setups}
    n_ctx = COMFORTABLE_CTX if COMFORTABLE_CTX in contexts else min(contexts)
    windows = min(setup.whole_windows for setup in setups)
    yield from (setup for setup in setups if (setup.n_ctx, setup.whole_windows) == (n_ctx, windows))


@dataclass(order=True, slots=True)
class _Node:
    """In the heap; the best first. `order` settles ties for good."""

    minus_score: float
    order: int
    way: Way = field(compare=False)
    weighed: Weighed | None = field(compare=False, default=None)  # None: a bound
    missed: Weighed | None = field(compare=False, default=None)  # whole and at its smallest, where that did not fit


class _Search:
    def __init__(self, rig: Rig, asked: Asked, measured: Mapping[str, MeasuredCosts]) -> None:
        self._scale = Scale(rig, num_slots=asked.num_slots, measured=measured)
        self._asked = asked
        self._heap: list[_Node] = []
        self._order = 0
        self.rejected: list[Rejected] = []

    def run(self, options: Sequence[Option]) -> Chosen | None:
        for option in options:
            self._push_bounds(option)
        while self._heap:
            node = heapq.heappop(self._heap)
            if node.weighed is not None:
                return Chosen(way=node.way, weighed=node.weighed)
            if node.missed is None:
                self._try_whole(node.way)
            else:
                self._try_on_host(node.way, node.missed)
        return None

    def outdone(self, chosen: Chosen | None) -> Iterator[Rejected]:
        """What is left: it would have scored lower, whether it fits or not."""
        for node in sorted(self._heap):
            way = node.way
            too_large = node.weighed is None and self._scale.lacks_gpu_bytes(way.option)
            if too_large:
                reason = f"too large for the GPU: {gib(way.option.shape.weights_bytes)} of weights; slower from RAM"
            else:
                reason = why_lower(way, chosen.way, self._asked.goal) if chosen else "it does not fit"
            yield Rejected(option=way.option, draft=way.draft.id, reason=reason, way=way, weighed=node.weighed)

    # ---- inside
    def _push_bounds(self, option: Option) -> None:
        setups = setups_for(option, self._asked)
        if self._asked.ctx and option.max_context and self._asked.ctx > option.max_context:
            reason = f"it was trained for {option.max_context} tokens, --ctx asks for {self._asked.ctx}"
            self.rejected.append(Rejected(option=option, draft="", reason=reason))
            return
        free = self._scale.total_free_bytes
        if free is not None and option.shape.weights_bytes > free:
            reason = f"{gib(option.shape.weights_bytes)} of weights, {gib(free)} to use in all"
            way = self._way(option, option.drafts[-1], setups[-1], 0)
            weighed = self._scale.weigh(option, way.draft, way.setup, 0)
            self.rejected.append(Rejected(option=option, draft="", reason=reason, way=way, weighed=weighed))
            return
        for draft in option.drafts:
            way = self._way(option, draft, setups[0], None)
            if draft.kind == NGRAM and not way.prediction.num_draft_tokens:
                way = replace(way, draft=NO_LOOKUP)
            if draft.shape is not None and not way.prediction.num_draft_tokens:
                self.rejected.append(Rejected(option=option, draft=draft.id, reason=DOES_NOT_PAY, way=way))
            else:
                self._push(way)

    def _push(self, way: Way, *, weighed: Weighed | None = None, missed: Weighed | None = None) -> None:
        self._order += 1
        heapq.heappush(self._heap, _Node(-way.score, self._order, way, weighed, missed))

    def _way(self, option: Option, draft: DraftWay, setup: Setup, gpu_layers: int | None) -> Way:
        prediction = self._scale.predict(option, draft, setup, gpu_layers)
        return Way(
            option=option,
            draft=draft,
            setup=setup,
            gpu_layers=gpu_layers,
            prediction=prediction,
            score=score(
                self._asked.goal,
                quality_b=option.quality_b,
                tok_s=prediction.spec_tok_s,
                comfort=Comfort(
                    n_ctx=setup.n_ctx,
                    kv_type=setup.kv_type,
                    whole_windows=setup.whole_windows,
                    on_host=gpu_layers is not None,
                    is_unseen=option.is_unseen,
                ),
            ),
        )

    def _try_whole(self, bound: Way) -> None:
        """All layers where they are quickest: on the GPUs, if there are any."""
        option, draft = bound.option, bound.draft
        setups = setups_for(option, self._asked)
        smallest = self._scale.weigh(option, draft, setups[-1], None)
        if smallest.fits:
            self._push_roomiest(option, draft, setups)
        elif self._scale.has_gpus:
            layers = self._scale.layers_at_best(option, draft)
            self._push(self._way(option, draft, setups[0], layers), missed=smallest)
        else:
            self._reject(bound, setups[-1], smallest)

    def _push_roomiest(self, option: Option, draft: DraftWay, setups: Sequence[Setup]) -> None:
        """The setup with the highest score among those that fit whole; the smallest does."""
        for way in sorted((self._way(option, draft, setup, None) for setup in setups), key=lambda way: -way.score):
            weighed = self._scale.weigh(option, draft, way.setup, None)
            if weighed.fits:
                return self._push(way, weighed=weighed)
        raise AssertionError("the smallest setup fitted a moment ago")

    def _try_on_host(self, bound: Way, missed: Weighed) -> None:
        """Layers that the GPUs cannot take stay in main memory; a small cache leaves room for more of them."""
        option, draft = bound.option, bound.draft
        setups = setups_for(option, self._asked)
        found = []
        for setup in small_setups(setups):
            layers = self._scale.most_layers(option, draft, setup)
            found += [] if layers is None else [self._way(option, draft, setup, layers)]
        if not found:
            return self._reject(bound, setups[-1], missed)
        best = max(found, key=lambda way: way.score)
        weighed = self._scale.weigh(option, draft, best.setup, best.gpu_layers)
        return self._push(best, weighed=weighed)

    def _reject(self, way: Way, setup: Setup, weighed: Weighed) -> None:
        reason = why_not_fits(weighed, setup)
        self.rejected.append(Rejected(option=way.option, draft=way.draft.id, reason=reason, way=way, weighed=weighed))


DOES_NOT_PAY = "it is predicted not to pay: verifying costs more than is accepted"


NO_LOOKUP = DraftWay(id="none", kind="none", notes=("no lookup: a rejected token would cost more than a whole step",))


def why_not_fits(weighed: Weighed, setup: Setup) -> str:
    """The room that lacks most, with its sum."""
    load = weighed.worst
    free = load.room.free_bytes or 0
    return (
        f"{gib(load.total)} on {load.room.device} even with {setup.n_ctx} tokens in {setup.kv_type}, {gib(free)} to use"
    )


def why_lower(way: Way, chosen: Way, goal: Goal) -> str:
    """What it lacks beside the chosen one."""
    speed, best = way.prediction.spec_tok_s, chosen.prediction.spec_tok_s
    where = "" if way.gpu_layers is None else f" with {way.gpu_layers} layers on the GPU"
    if way.option is chosen.option:
        if speed > best:
            return f"{speed:.1f} tokens/s{where}, but room for {way.setup.n_ctx} tokens in {way.setup.kv_type} only"
        return f"{speed:.1f} tokens/s with it{where}, {best:.1f} with {chosen.draft.id}"
    if way.option.quality_b < 0.999 * chosen.option.quality_b:
        lesser = f"lesser answers: as {way.option.quality_b:.1f} B, the plan as {chosen.option.quality_b:.1f} B"
        return lesser if speed <= best else f"{lesser} (though {speed:.0f} tokens/s)"
    if speed >= 0.999 * best:
        return f"less room: {way.setup.n_ctx} tokens in {way.setup.kv_type}"
    pace = f", --goal {goal.name} wants {goal.pace:.0f}" if speed < goal.pace else ""
    return f"slower: {speed:.1f} tokens/s{where}, the plan {best:.1f}{pace}"


def unusable(options: Sequence[Option]) -> Iterator[Rejected]:
    """Drafts that cannot be used, once for each target."""
    seen: set[tuple[str, str]] = set()
    for option in options:
        for draft in option.unusable:
            if (option.target, draft.id) not in seen:
                seen.add((option.target, draft.id))
                yield Rejected(option=option, draft=draft.id, reason=draft.reason)


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
