"""`python -m guide.write_questions`: write the questions that `bench` asks and `train` begins with, from the corpus.

Run it in tests/. Held-out questions are those that the embedded model was not trained on.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from guide.corpus.mixture import KINDS, tasks_of
from guide.corpus.tasks import Split

FILE = Path(__file__).parents[2] / "eaglelocal/bench/questions.jsonl.gz"
PARTS: tuple[tuple[Split, int, int], ...] = (("held_out", 11, 128), ("train", 5, 1500))  # split, seed, of each kind


def lines() -> Iterator[str]:
    for split, seed, count in PARTS:
        for kind in KINDS:
            for task in islice(tasks_of(kind, seed, split), count):
                messages = [{"role": message.role, "content": message.content} for message in task.messages]
                yield json.dumps({"split": split, "category": kind, "messages": messages})


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress("\n".join(lines()).encode(), mtime=0))
