"""Record what a head drafts after every token: python tests/measures/recorded_drafts.py OUT.jsonl TARGET [--draft REF]

Answers prompts greedily and plainly, while the head drafts after each token and nothing is sent. What any drafter would
have given is then known without the models: tests/measures/lookahead.py replays it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eaglelocal.bench.bench_prompts import builtin_prompts, group_by_category, read_prompts
from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.drafter import NOTHING, Committed, Continuation, Drafter, Lookup, Node
from eaglelocal.loading import engine_builder
from eaglelocal.preparation.decision import resolve

DEPTH, CTX = 6, 2048


@dataclass(frozen=True)
class Recorded:
    """An answer with its prompt, and by position the chain after each token with its confidences."""

    kind: str
    num_prompt: int
    text: list[int]
    chains: dict[str, tuple[list[int], list[float]]]

    def chain(self, position: int) -> tuple[list[int], list[float]]:
        return self.chains.get(str(position), ([], []))


def read_recorded(path: Path, num_answers: int) -> list[Recorded]:
    """Return so many answers of each kind."""
    found: dict[str, list[Recorded]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = Recorded(**json.loads(line))
        found.setdefault(answer.kind, []).append(answer)
    return [answer for answers in found.values() for answer in answers[:num_answers]]


def count_accepted(draft: Sequence[int], rest: Sequence[int]) -> int:
    number = 0
    for token, wanted in zip(draft, rest, strict=False):
        if token != wanted:
            break
        number += 1
    return number


class Recorder(Drafter):
    """A drafter that keeps what another one proposes, and proposes nothing. One slot, no reuse."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.traits = drafter, drafter.traits
        for name in ("end", "buffer", "skip", "catch_up", "close"):
            setattr(self, name, getattr(drafter, name))
        self.text: dict[int, int] = {}
        self.chains: dict[int, tuple[list[int], list[float]]] = {}

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        self.chains, self.num_prompt = {}, num_prompt
        self._drafter.begin(slot, owner, num_prompt)

    def rollback(self, slot: int, position: int) -> None:
        self.text = {at: token for at, token in self.text.items() if at < position}
        self._drafter.rollback(slot, position)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        for node, found in zip(nodes, self._drafter.draft(nodes, depth), strict=True):
            if node.is_root:
                self.text[node.position] = node.token
                confidences = [round(float(each), 4) for each in found.confidences]
                self.chains[node.position] = list(map(int, found.tokens)), confidences
        return [NOTHING for _ in nodes]

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            self.text |= {rows.first_position + i: int(token) for i, token in enumerate(rows.tokens)}
        self._drafter.commit(committed)

    def recorded(self, kind: str) -> dict[str, object]:
        text = [self.text[position] for position in range(len(self.text))]
        return {"kind": kind, "num_prompt": self.num_prompt, "text": text, "chains": self.chains}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto", help="a head")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--answers", type=int, default=4, help="of each kind")
    parser.add_argument("--max-tokens", type=int, default=96)
    given = parser.parse_args()
    recorders: list[Recorder] = []
    open_drafters = engine_builder.open_drafters

    def open_recorder(*arguments: object) -> tuple[Drafter, ...]:
        (head,) = [each for each in open_drafters(*arguments) if not isinstance(each, Lookup)]  # type: ignore[arg-type]
        recorders.append(Recorder(head))
        return (recorders[0],)

    engine_builder.open_drafters = open_recorder  # type: ignore[assignment]
    plan = resolve(RunOptions(target=given.target, draft=given.draft), on_progress=lambda share, what: None)
    engine = engine_builder.build(replace(plan, n_ctx=CTX, spec=fixed_spec(DEPTH)), lambda _: None)
    params = SamplingParams(temperature=0.0, max_tokens=given.max_tokens)
    prompts = read_prompts(given.prompts) if given.prompts else builtin_prompts([], given.answers)
    with given.out.open("w", encoding="utf-8") as out:
        for kind, asked in group_by_category(prompts, given.answers).items():
            for number, prompt in enumerate(asked):
                engine.submit(
                    ChatRequest(id=f"{kind} {number}", messages=prompt.messages, params=params, reuses_cache=False)
                )
                while engine.has_work:
                    engine.step()
                out.write(json.dumps(recorders[0].recorded(kind)) + "\n")
                out.flush()
    engine.close()
    sys.stdout.flush()
    os._exit(0)  # the executors that read requests are threads


if __name__ == "__main__":
    sys.exit(main())
