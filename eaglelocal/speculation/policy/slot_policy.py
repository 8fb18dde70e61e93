"""Plain data of the policy: the drafters, the slots that decode, and the drafting policy of one request."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from eaglelocal.core.draft import MEASURING
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS, DraftPolicy, Spec
from eaglelocal.speculation.policy.pending_drafts import kept_name
from eaglelocal.speculation.policy.pid import LengthController

TRIAL_STEPS, TRIAL_LENGTH = 6, 3  # of a trial: steps, and tokens that each drafts and none sends
TRIAL_SKIPPED = 2  # its first steps, which underrate a drafter that has just woken, and teach nothing


@dataclass(frozen=True, slots=True)
class DrafterSet:
    """Names of the drafters: the primary one, which has a model, and lookups, which cost next to nothing.

    block_size    tokens of one draft step of the primary drafter, and none after them; 1: a step per token
    num_branches  chains of a slot's tree that the primary drafter can draft besides the trunk
    max_depth     tokens that the primary drafter can draft after a root
    max_unread    newest tokens that the primary drafter reads when it wakes; a draft model reads all
    """

    primary: str | None = None
    lookups: tuple[str, ...] = ()
    block_size: int = 1
    num_branches: int = 0
    max_depth: int = MAX_DRAFT_TOKENS
    max_unread: int = 0

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
    missed: float = 0.0  # tokens that it could have gained lately while it slept

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
            self.num_unread, self.missed = 0, 0.0
        self.state, self.reason = GateState.ASLEEP, reason

    def try_out(self) -> None:
        self.state, self.reason, self.trial_steps = GateState.PROBING, MEASURING, 0


@dataclass(slots=True)
class SlotPolicy:
    """The drafting policy of one request over all its steps: its spec, and the state of the `auto` or PID rule."""

    spec: Spec
    gate: SlotGate | None  # for `auto` only
    pid: LengthController | None = None

    def __post_init__(self) -> None:
        if self.spec.drafting is DraftPolicy.PID:
            self.pid = LengthController()

    @property
    def state(self) -> GateState | None:
        return self.gate.state if self.gate is not None else None

    @property
    def is_probing(self) -> bool:
        return self.gate is not None and self.gate.is_probing

    @property
    def length(self) -> int:
        """Number of tokens to draft, for a rule that ignores costs (fixed, PID)."""
        return self.pid.num_draft_tokens if self.pid is not None else self.spec.num_draft_tokens
