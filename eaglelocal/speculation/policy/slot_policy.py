"""Plain data of the policy: the drafters, the slots that decode, and the drafting policy of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import NamedTuple

from eaglelocal.core.draft import MATCH_LENGTHS, MEASURING
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS, DraftPolicy, Spec
from eaglelocal.speculation.policy.pending_drafts import kept_name
from eaglelocal.speculation.policy.pid import LengthController

VAIN_FINDS = 8  # in a row, after which the next length is wanted
MAX_VAIN = (len(MATCH_LENGTHS) - 1) * VAIN_FINDS
SHORT_EVERY = 16  # one step in this many accepts the shortest match again, because the text may have changed
REST_AFTER = 64  # steps in a row without a draft worth sending, after which
REST_EVERY = 4  # one step of so many asks, and one of SHORT_EVERY times as many for the shortest
FIRST_LOOKS = 8  # steps of a new request that ask before they rest, however long the one before found nothing
TRIAL_STEPS, TRIAL_LENGTH = 6, 3  # of a trial: steps, and tokens that each drafts and none sends
TRIAL_SKIPPED = 2  # its first steps, which underrate a drafter that has just woken, and teach nothing
NO_LENGTHS: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class DrafterSet:
    """Names of the drafters: the primary one, which has a model, and lookups, which cost next to nothing.

    block_size    tokens of one draft step of the primary drafter, and none after them; 1: a step per token
    num_branches  chains of a slot's tree that the primary drafter can draft besides the trunk
    max_depth     tokens that the primary drafter can draft after a root
    reads_texts   the primary drafter reads all of a text itself before it drafts
    """

    primary: str | None = None
    lookups: tuple[str, ...] = ()
    block_size: int = 1
    num_branches: int = 0
    max_depth: int = MAX_DRAFT_TOKENS
    reads_texts: bool = False

    def depth_limit(self, drafter: str) -> int:
        """Return how many tokens the drafter can draft after a root."""
        return self.max_depth if drafter == self.primary else MAX_DRAFT_TOKENS

    def num_steps(self, drafter: str, num_tokens: int) -> int:
        """Return the draft steps that num_tokens of a slot take."""
        return -(-num_tokens // self.block_size) if drafter == self.primary else num_tokens

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.lookups, self.primary) if self.primary else self.lookups

    @property
    def kept(self) -> str:
        """The name under which the rest of an earlier draft is proposed."""
        return kept_name(self.primary or "")

    @property
    def free(self) -> tuple[str, ...]:
        """The names of what costs next to nothing to propose."""
        return (self.kept, *self.lookups) if self.primary else self.lookups


class DraftCall(NamedTuple):
    """A call of a drafter: num_levels levels after num_rows tokens, of several slots or in a slot's tree.

    No levels: it prefilled num_rows deferred tokens.
    """

    drafter: str
    num_rows: int
    seconds: float
    num_levels: int = 1


class DecodeSlot(NamedTuple):
    """A slot that decodes in this step; `max_draft` is how many drafted tokens can be of use to it."""

    slot: int
    max_draft: int


class GateState(Enum):
    AWAKE = "on"
    PROBING = "probing"
    ASLEEP = "asleep"


@dataclass(slots=True)
class SlotGate:
    """The state of the primary drafter for a slot, awake or not, and why not."""

    state: GateState = GateState.AWAKE
    reason: str = ""
    num_unread: int = 0  # tokens of the text that it has not read
    steps_idle: int = 0  # in a row without a draft
    trial_steps: int = 0  # of the trial so far

    @property
    def is_awake(self) -> bool:
        return self.state is not GateState.ASLEEP

    @property
    def is_probing(self) -> bool:
        return self.state is GateState.PROBING

    @property
    def probe_length(self) -> int:
        """Return how many tokens are drafted whatever they cost."""
        return TRIAL_LENGTH if self.is_probing else 0

    @property
    def is_settling(self) -> bool:
        """True if the drafter has just woken: its first tokens underrate it, and are not learned from."""
        return self.is_probing and self.trial_steps < TRIAL_SKIPPED

    def wake(self, reason: str) -> None:
        if self.state is not GateState.AWAKE:
            self.state, self.reason = GateState.AWAKE, reason
            self.num_unread = self.steps_idle = 0

    def sleep(self, reason: str) -> None:
        if self.is_awake:
            self.num_unread = 0
        self.state, self.reason = GateState.ASLEEP, reason

    def try_out(self) -> None:
        self.state, self.reason, self.trial_steps = GateState.PROBING, MEASURING, 0


@dataclass(slots=True)
class SlotPolicy:
    """The drafting policy of one request over all its steps: its spec, and the state of the `auto` or PID rule."""

    spec: Spec
    gate: SlotGate | None  # for `auto` only
    pid: LengthController | None = None
    num_vain: dict[str, int] = field(default_factory=dict)  # by lookup: finds in a row of which nothing was sent
    num_asked: int = 0  # steps in which only lookups could draft
    num_fruitless: int = 0  # those since a draft was sent

    def __post_init__(self) -> None:
        if self.spec.drafting is DraftPolicy.PID:
            self.pid = LengthController()

    @property
    def state(self) -> GateState | None:
        return self.gate.state if self.gate is not None else None

    @property
    def is_probing(self) -> bool:
        return self.gate is not None and self.gate.is_probing

    def follow(self, last: SlotPolicy) -> None:
        """Carry over from the slot's last request how often lookups found something."""
        self.num_vain = last.num_vain
        self.num_fruitless = min(last.num_fruitless, REST_AFTER - FIRST_LOOKS)

    def next_match_lengths(self, lookups: Sequence[str]) -> Mapping[str, int]:
        """Return how long a match of each lookup must be in the next step in which only lookups can draft.

        Empty where none is asked: a copied passage is found a few tokens later.
        """
        is_resting = self.num_fruitless >= REST_AFTER
        self.num_fruitless += 1
        self.num_asked += 1
        if is_resting and self.num_asked % REST_EVERY:
            return NO_LENGTHS
        is_checked = self.num_asked % (REST_EVERY * SHORT_EVERY if is_resting else SHORT_EVERY) == 0
        return {name: MATCH_LENGTHS[0 if is_checked else self.num_vain.get(name, 0) // VAIN_FINDS] for name in lookups}

    def record_finds(self, lookups: Sequence[str], *, is_sent: bool) -> None:
        """Record the lookups that found something in a step, and whether any draft was sent."""
        if is_sent:
            self.num_fruitless = 0
        for name in lookups:
            self.num_vain[name] = 0 if is_sent else min(self.num_vain.get(name, 0) + 1, MAX_VAIN)

    @property
    def length(self) -> int:
        """Number of tokens to draft, for a rule that ignores costs (fixed, PID)."""
        return self.pid.num_draft_tokens if self.pid is not None else self.spec.num_draft_tokens
