"""One step's decisions: whose drafter works, whether a chain grows another level, how much of it is verified.

Made anew for each step by the controller and thrown away with it. Fixed and PID lengths are decided slot by slot;
`auto` decides for all its slots together, because they share the rows of one decode.
Pure: reads what was learned, changes nothing but its own chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eaglelocal.core.draft import Draft
from eaglelocal.core.request import Drafting, Spec
from eaglelocal.speculation.acceptance import Acceptance
from eaglelocal.speculation.costs import StepCosts
from eaglelocal.speculation.goodput import best_size, expected_worth, merged, pays_to_draft
from eaglelocal.speculation.pid import LengthController
from eaglelocal.speculation.watch import PROBE_LENGTH, State, Watch

HOPE_MEMORY = 24.0
MIN_REACH = 0.02  # a token less likely to be reached is not worth a draft step on any machine


@dataclass(frozen=True, slots=True)
class Drafters:
    """Names of the drafters there are: what the plan asked for, and lookups that cost next to nothing."""

    primary: str | None = None
    lookups: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.lookups, self.primary) if self.primary else self.lookups


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot that decodes in this step, and the drafted tokens that would be of use to it."""

    slot: int
    room: int


@dataclass(slots=True)
class Mind:
    """What is known of one request's drafting."""

    spec: Spec
    watch: Watch | None  # of `auto`
    hope: float  # how often a token of the primary drafter was accepted lately, given the one before it
    pid: LengthController | None = None

    def __post_init__(self) -> None:
        if self.spec.drafting is Drafting.PID:
            self.pid = LengthController()

    @property
    def state(self) -> State | None:
        return self.watch.state if self.watch is not None else None

    @property
    def is_probing(self) -> bool:
        return self.watch is not None and self.watch.is_probing

    @property
    def length(self) -> int:
        """Tokens to draft, where costs have no say."""
        return self.pid.num_draft_tokens if self.pid is not None else self.spec.num_draft_tokens

    def learn_hope(self, accepted: bool) -> None:
        self.hope += (accepted - self.hope) / HOPE_MEMORY


class Prices:
    """Seconds in tokens, for one step."""

    def __init__(self, costs: StepCosts, *, rate: float, num_base_rows: int, num_cells: int) -> None:
        self._costs, self._rate = costs, rate
        self._num_base_rows, self._num_cells = num_base_rows, num_cells

    def rows(self, num_units: int, rows_a_unit: int) -> list[float]:
        """Price of the decode with 0 .. num_units further units of rows."""
        seconds, base, cells = self._costs.seconds, self._num_base_rows, self._num_cells
        return [self._rate * seconds(base + n * rows_a_unit, cells) for n in range(num_units + 1)]

    def draft_step(self, drafter: str, num_rows: int) -> float:
        return self._rate * self._costs.draft_seconds(drafter, num_rows)


@dataclass(slots=True)
class Chain:
    """What one drafter proposes for one slot."""

    draft: Draft
    gains: list[float] = field(default_factory=list)  # probability that the answer gets as far as each token
    ended: bool = False  # the drafter has no more to say

    @property
    def reach(self) -> float:
        return self.gains[-1] if self.gains else 1.0


class StepChoice:
    """Told what drafters propose (`add`, `end`), asked who goes on (`growing`) and what is sent (`chosen`)."""

    def __init__(
        self,
        seats: Sequence[Seat],
        minds: Mapping[int, Mind],
        drafters: Drafters,
        acceptance: Acceptance,
        prices: Prices,
        *,
        leveled: bool,
    ) -> None:
        self._room = {seat.slot: min(seat.room, minds[seat.slot].spec.max_draft) for seat in seats}
        self._minds, self._drafters, self._acceptance = minds, drafters, acceptance
        self._auto = [slot for slot in self._room if minds[slot].spec.drafting is Drafting.AUTO]
        self._leveled = leveled and len(seats) > 1
        most = max((self._room[slot] for slot in self._auto), default=0)
        units = (most, len(self._auto)) if self._leveled else (sum(self._room[slot] for slot in self._auto), 1)
        self._prices, self._row_prices = prices, prices.rows(*units) if self._auto else [0.0]
        self._chains: dict[str, dict[int, Chain]] = {name: {} for name in drafters.names}

    # ---- growing
    def growing(self, drafter: str) -> list[int]:
        """Slots for which this drafter should propose another level."""
        chains = self._chains[drafter]
        able = [s for s in self._room if self._takes_part(s, drafter) and self._has_room(s, chains.get(s))]
        fixed = [s for s in able if self._is_told(s, chains.get(s))]
        undecided = [s for s in able if s in self._auto and s not in fixed]
        if undecided and self._pays(drafter, undecided):
            return [s for s in able if s in fixed or s in undecided]
        return fixed

    def _takes_part(self, slot: int, drafter: str) -> bool:
        mind, is_primary = self._minds[slot], drafter == self._drafters.primary
        if mind.spec.drafting is not Drafting.AUTO:
            return is_primary
        if not is_primary:
            return not mind.is_probing
        return mind.watch is not None and mind.watch.is_awake and not self._is_settled_by_lookup(slot)

    def _has_room(self, slot: int, chain: Chain | None) -> bool:
        if chain is None:
            return self._room[slot] > 0
        return not chain.ended and len(chain.gains) < self._room[slot] and chain.reach >= MIN_REACH

    def _is_told(self, slot: int, chain: Chain | None) -> bool:
        """Its length is a matter of rule, not of price."""
        mind, length = self._minds[slot], len(chain.gains) if chain else 0
        if mind.spec.drafting is not Drafting.AUTO:
            return length < mind.length
        return mind.is_probing and length < PROBE_LENGTH

    def _pays(self, drafter: str, slots: Sequence[int]) -> bool:
        chains = self._chains[drafter]
        grown = [chains[s].gains if s in chains else [] for s in self._auto]
        reaches = [chains[s].reach if s in chains else 1.0 for s in slots]
        hopes = [self._minds[s].hope for s in slots]
        step_price = self._prices.draft_step(drafter, len(slots)) if drafter == self._drafters.primary else 0.0
        return pays_to_draft(
            self._units(grown), self._row_prices, list(zip(reaches, hopes, strict=True)), step_price, self._leveled
        )

    def _units(self, chains: Sequence[Sequence[float]]) -> list[float]:
        """Gains by the unit in which rows are added: a level of all slots, or single rows, best first."""
        if not self._leveled:
            return sorted((gain for chain in chains for gain in chain), reverse=True)
        return [sum(c[i] for c in chains if i < len(c)) for i in range(max(map(len, chains), default=0))]

    def _is_settled_by_lookup(self, slot: int) -> bool:
        """Does a lookup already promise more than the primary drafter can be expected to?"""
        best = max((self._worth(slot, name) for name in self._drafters.lookups), default=0.0)
        if best <= 0.0:
            return False
        step_price = self._prices.draft_step(self._drafters.primary or "", 1)
        return best >= expected_worth(self._minds[slot].hope, self._row_prices[: self._room[slot] + 1], step_price)

    def _worth(self, slot: int, drafter: str) -> float:
        """Of the slot's chain, compared with no draft at all."""
        chain = self._chains[drafter].get(slot)
        if chain is None or not chain.gains:
            return 0.0
        return best_size(chain.gains, self._row_prices)[1] + self._row_prices[0]

    def add(self, slot: int, drafter: str, token: int, confidence: float) -> None:
        """The drafter proposes a token behind its chain for the slot."""
        chain = self._chains[drafter].setdefault(slot, Chain(Draft(drafter=drafter)))
        depth = len(chain.gains) + 1
        chain.draft = chain.draft.plus(depth - 2, token, confidence)
        chain.gains.append(chain.reach * self._acceptance.probability(slot, drafter, depth, confidence))

    def end(self, slot: int, drafter: str) -> None:
        """The drafter has nothing more to propose for the slot."""
        self._chains[drafter].setdefault(slot, Chain(Draft(drafter=drafter))).ended = True

    # ---- choosing
    def chosen(self) -> dict[int, Draft]:
        """What is verified, by slot."""
        best = {slot: self._best_chain(slot) for slot in self._room}
        sizes = self._sizes({slot: best[slot].gains for slot in self._auto})
        return {slot: chain.draft.first(sizes.get(slot, len(chain.draft))) for slot, chain in best.items()}

    def _best_chain(self, slot: int) -> Chain:
        chains = [self._chains[name][slot] for name in self._drafters.names if slot in self._chains[name]]
        if len(chains) == 1:
            return chains[0]
        return max(chains, key=lambda c: self._worth(slot, c.draft.drafter), default=Chain(Draft()))

    def _sizes(self, gains: Mapping[int, Sequence[float]]) -> dict[int, int]:
        slots = list(gains)
        if self._leveled:
            level, _ = best_size(self._units([gains[s] for s in slots]), self._row_prices)
            sizes = {slot: min(level, len(gains[slot])) for slot in slots}
        else:
            ranked, owners = merged([gains[s] for s in slots])
            size, _ = best_size(ranked, self._row_prices)
            sizes = {slot: owners[:size].count(i) for i, slot in enumerate(slots)}
        for slot in slots:
            if self._minds[slot].is_probing:
                sizes[slot] = max(sizes[slot], min(PROBE_LENGTH, len(gains[slot])))
        return sizes
