"""Check whether the embedded model is good enough to commit, by held-out tasks through our own engine, greedily.

    python -m guide.evaluate [--target REF] [--draft-tokens N] [--tasks N] [--json] [--wrong N]

Prints, for each kind of task, the share of right answers and the acceptance length, and which of the
thresholds below are missed; exits 1 if any is. Uses the corpus and a client.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import field
from itertools import islice

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Finished
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve
from guide.corpus.mixture import KINDS, tasks_of
from guide.corpus.tasks import CorpusTask, is_right

SEED = 2026
MAX_TOKENS = 400
RIGHT_AT_LEAST = {"chat": 0.90, "math": 0.90, "passage": 0.85, "python": 0.95}
SIX_KINDS = ("chat", "summarise", "passage", "math", "translate", "python")
MEAN_LENGTH_AT_LEAST = 3.2
WORST_LENGTH_AT_LEAST = 2.2


@dataclass(slots=True)
class Score:
    """The results of a kind of task. `wrong` holds (question, expected, got) of wrong answers."""

    kind: str
    num_tasks: int = 0
    num_right: int = 0
    num_tokens: int = 0
    drafts: int = 0
    emitted: int = 0  # by verifications that had a draft
    wrong: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, task: CorpusTask, text: str, finished: Finished) -> None:
        """Judge an answer by the task's own check, and add it with its statistics."""
        self.num_tasks += 1
        if is_right(task, text):
            self.num_right += 1
        else:
            self.wrong.append((task.messages[-1].content, task.answer, text))
        self.num_tokens += finished.completion_tokens
        self.drafts += finished.speculation.drafts
        self.emitted += finished.speculation.emitted_tokens

    @property
    def right(self) -> float:
        return self.num_right / max(self.num_tasks, 1)

    @property
    def acceptance_length(self) -> float:
        return self.emitted / self.drafts if self.drafts else 1.0


def score_kind(client: EngineClient, kind: str, num_tasks: int) -> Score:
    """Ask `num_tasks` held-out tasks, four at once, judge each by its own check, and return the score."""
    score = Score(kind)
    tasks = islice(tasks_of(kind, SEED, "held_out"), num_tasks)
    for batch in split_batches(tasks, 4):
        answers = [(task, client.stream(make_request(task, f"{kind}-{id(task)}"))) for task in batch]
        for task, answer in answers:
            reply = answer.result()
            score.add(task, reply.text, reply.finished)
    return score


def make_request(task: CorpusTask, name: str) -> ChatRequest:
    messages = tuple(Message(m.role, m.content) for m in task.messages)
    return ChatRequest(id=name, messages=messages, params=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS))


def split_batches(tasks: Iterator[CorpusTask], size: int) -> Iterator[list[CorpusTask]]:
    while batch := list(islice(tasks, size)):
        yield batch


def find_failures(scores: list[Score]) -> list[str]:
    """Return a line for each threshold that is missed."""
    short = [
        f"{s.kind}: {s.right:.1%} right, {RIGHT_AT_LEAST[s.kind]:.0%} required"
        for s in scores
        if s.right < RIGHT_AT_LEAST.get(s.kind, 0)
    ]
    six = [s.acceptance_length for s in scores if s.kind in SIX_KINDS]
    if six and sum(six) / len(six) < MEAN_LENGTH_AT_LEAST:
        short.append(f"mean acceptance length {sum(six) / len(six):.2f}, {MEAN_LENGTH_AT_LEAST} required")
    if six and min(six) < WORST_LENGTH_AT_LEAST:
        short.append(f"worst acceptance length {min(six):.2f}, {WORST_LENGTH_AT_LEAST} required")
    return short


def format_table(scores: list[Score]) -> str:
    lines = [f"{'kind':<10} {'tasks':>6} {'right':>7} {'tokens':>7} {'acceptance length':>18}"]
    lines += [
        f"{s.kind:<10} {s.num_tasks:>6} {s.right:>7.1%} {s.num_tokens:>7} {s.acceptance_length:>18.2f}" for s in scores
    ]
    six = [s.acceptance_length for s in scores if s.kind in SIX_KINDS]
    return "\n".join([*lines, f"mean acceptance length over the six kinds: {sum(six) / max(len(six), 1):.2f}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m guide.evaluate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default="demo@native", help="which embedded model (default: the small original)")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks of each kind")
    parser.add_argument(
        "--threads", type=int, default=None, help="CPU threads (default: the cores that this process may use)"
    )
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS), help="kinds of tasks")
    parser.add_argument("--wrong", type=int, default=0, help="number of wrong answers to show of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    plan = resolve(
        RunOptions(target=arguments.target, spec=arguments.draft_tokens, parallel=4, threads=arguments.threads),
        on_progress=lambda fraction, what: None,
    )
    with EngineClient(plan) as client:
        client.start()
        scores = [score_kind(client, kind, arguments.tasks) for kind in arguments.kinds]
    show(scores, num_wrong=arguments.wrong, as_json=arguments.json)
    return 1 if find_failures(scores) else 0


def show(scores: list[Score], *, num_wrong: int, as_json: bool) -> None:
    out = [format_table(scores), *(f"short: {line}" for line in find_failures(scores))]
    for score in scores:
        out += [f"\n[{score.kind}] {q}\n  expected: {e}\n  got:      {g}" for q, e, g in score.wrong[:num_wrong]]
    if as_json:
        out.append(json.dumps([{**dataclasses.asdict(s), "wrong": len(s.wrong)} for s in scores]))
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    sys.exit(main())
