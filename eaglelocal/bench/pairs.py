"""Plain and speculative runs of the same prompts, alternating A B A B, through two engines of one plan.

Both engines are loaded, one works at a time. The plain one has speculation really off: no taps, no
draft. Knows clients and timings, nothing of how a draft is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eaglelocal.bench.prompts import Conversation
from eaglelocal.bench.statistics import Bound, bounded_mean
from eaglelocal.client.answer import Reply, stream
from eaglelocal.client.port import Client
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams

OnPair = Callable[[str, int, int], None]  # spec label, pairs done, pairs in all


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, answered plainly and with speculation."""

    plain: Reply
    drafted: Reply

    @property
    def speedup(self) -> float:
        return self.drafted.finished.timings.decode_tok_s / self.plain.finished.timings.decode_tok_s

    @property
    def identical(self) -> bool:
        return self.plain.tokens == self.drafted.tokens


@dataclass(frozen=True, slots=True)
class Run:
    """All pairs of one category at one draft length."""

    category: str
    spec: str
    pairs: tuple[Pair, ...]

    @property
    def speedup(self) -> Bound:
        return bounded_mean([pair.speedup for pair in self.pairs])

    @property
    def plain_tok_s(self) -> float:
        return median([p.plain.finished.timings.decode_tok_s for p in self.pairs])

    @property
    def spec_tok_s(self) -> float:
        return median([p.drafted.finished.timings.decode_tok_s for p in self.pairs])

    @property
    def ttft_s(self) -> float:
        return median([p.drafted.finished.timings.ttft_s for p in self.pairs])

    @property
    def acceptance_length(self) -> float:
        stats = [p.drafted.finished.speculation for p in self.pairs]
        return sum(s.emitted_tokens for s in stats) / max(sum(s.drafts for s in stats), 1)

    @property
    def num_identical(self) -> int:
        return sum(pair.identical for pair in self.pairs)


class Pairing:
    """Asks both clients; at each length every other prompt begins with the speculative one, so drift cancels."""

    def __init__(self, plain: Client, drafted: Client, max_tokens: int) -> None:
        self._plain, self._drafted, self._max_tokens = plain, drafted, max_tokens
        self._asked = 0

    def run(
        self, prompts: Mapping[str, Sequence[Conversation]], lengths: Sequence[int | None], on_pair: OnPair
    ) -> list[Run]:
        """Pairs for every category and draft length (None: as the engine's policy decides)."""
        total = sum(map(len, prompts.values())) * len(lengths)
        pairs: dict[tuple[str, str], list[Pair]] = {}
        for category, conversations in prompts.items():
            for number, conversation in enumerate(conversations):
                for length in lengths:
                    label = "auto" if length is None else str(length)
                    pair = self._pair(conversation, length, drafted_first=number % 2 == 1)
                    if pair is not None:
                        pairs.setdefault((category, label), []).append(pair)
                    on_pair(label, self._asked // 2, total)
        return [Run(category, spec, tuple(found)) for (category, spec), found in pairs.items()]

    def _pair(self, conversation: Conversation, length: int | None, *, drafted_first: bool) -> Pair | None:
        """None where an answer is too short to have a speed."""
        order = (self._drafted, self._plain) if drafted_first else (self._plain, self._drafted)
        replies = {client: self._ask(client, conversation, length) for client in order}
        pair = Pair(replies[self._plain], replies[self._drafted])
        speeds = (pair.plain.finished.timings.decode_tok_s, pair.drafted.finished.timings.decode_tok_s)
        return pair if min(speeds) > 0 else None

    def _ask(self, client: Client, conversation: Conversation, length: int | None) -> Reply:
        self._asked += 1
        params = SamplingParams(temperature=0.0, max_tokens=self._max_tokens)
        name = f"bench-{self._asked}"
        return stream(client, ChatRequest(id=name, messages=conversation, params=params, max_draft=length)).result()


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
