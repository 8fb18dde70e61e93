"""Reports between engine and policy: a finished step, and the slots whose drafting changed. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.records import dataclass
from eaglelocal.speculation.policy.slot_policy import DraftCall, GateState
from eaglelocal.speculation.policy.step_policy import StepPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The work and the wall time of a finished step."""

    num_rows: int  # of the target's decode
    num_padding_rows: int = 0  # of these rows, padding
    num_passes: int = 1  # over the target's weights
    num_prefill_rows: int
    num_cells: int  # cached positions that a decoding row attends to
    decode_s: float
    draft_calls: Sequence[DraftCall]
    other_s: float  # everything else: sampling, encoding, emitting tokens
    verdicts: Mapping[int, tuple[Draft, Verdict]]  # of decoding slots
    policy: StepPolicy | None = None  # that decided the drafts; None: acceptance is not learned

    @property
    def num_drafted(self) -> int:
        return sum(len(draft) for draft, _ in self.verdicts.values())

    @property
    def num_tokens(self) -> int:
        return sum(len(verdict.samples) for _, verdict in self.verdicts.values())

    @property
    def draft_s(self) -> float:
        return sum([call.seconds for call in self.draft_calls])

    @property
    def seconds(self) -> float:
        return self.decode_s + self.other_s + self.draft_s


@dataclass(frozen=True, slots=True)
class Change:
    """A slot whose drafting fell asleep or woke. Probes are too short to be reported."""

    slot: int
    state: GateState
    reason: str
