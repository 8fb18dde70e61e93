"""What remembered texts give to lookups: python tests/measures/lookup_memory.py [FILE ...] [--commits N]

An editing session is recorded in this repository: each commit that changed a file is one conversation, whose answer is
the text of its edits, old lines and new ones, as an agent's editing tool is called. Prints tokens per check (a decode
of the target that makes at least one token) if a target wrote exactly that, with the file in the prompt and, as after
a compaction, without it: each lookup alone, within one process, and with a memory in a new process for each answer.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.drafters.lookup_memory import LookupMemory
from eaglelocal.drafters.ngram import Ngram

DEFAULT_FILES = ("eaglelocal/engine/engine.py", "eaglelocal/cli/serve.py", "eaglelocal/planning/plan_search.py")
CTX, DEPTH = 32_768, 8
MEMORY_TOKENS, N_VOCAB = 200_000, 2**31


@dataclass(frozen=True)
class Edit:
    """One conversation: the file as it was, what is asked, and the edits that are answered."""

    before: str
    question: str
    answer: str


class Tokenizer:
    """Cuts where a vocabulary of a model would cut about."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        words = re.findall(r" ?\w{1,5}|\n\s*|[^\w]", text)
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def read_edits(path: str, num_commits: int) -> Iterator[Edit]:
    """Yield the newest edits of a file, the oldest first."""
    commits = git("log", "--format=%h %s", f"-{num_commits}", "--", path).splitlines()
    for line in reversed(commits):
        commit, subject = line.split(" ", 1)
        try:
            before = git("show", f"{commit}^:{path}")
        except subprocess.CalledProcessError:
            continue  # the file began here
        hunks = re.split(r"^@@.*$", git("show", "--format=", "-U2", commit, "--", path), flags=re.MULTILINE)[1:]
        yield Edit(before, subject, "".join(map(format_edit, hunks)))


def format_edit(hunk: str) -> str:
    lines = hunk.strip("\n").splitlines()
    old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    return f"<edit>\n<old>\n{old}\n</old>\n<new>\n{new}\n</new>\n</edit>\n"


def count_checks(lookup: Ngram, prompt: list[int], answer: list[int]) -> int:
    """Have a slot read the prompt and write the answer, and return the number of checks that takes."""
    lookup.begin(0, "somebody", len(prompt))
    lookup.rollback(0, 0)
    lookup.commit([Committed(0, 0, prompt, None)])
    text, at, num_checks = [*prompt, *answer], len(prompt), 0
    while at < len(text) - 1:
        (drafted,) = lookup.draft([Node(0, ROOT, text[at], at)], DEPTH)
        accepted = 0
        while accepted < len(drafted.tokens) and text[at + 1 + accepted : at + 2 + accepted] == [
            drafted.tokens[accepted]
        ]:
            accepted += 1
        end = min(at + 1 + accepted, len(text) - 1)
        lookup.commit([Committed(0, at, text[at:end], None)])
        at, num_checks = end, num_checks + 1
    lookup.end(0)
    return num_checks


def measure(edits: list[Edit], *, has_file: bool) -> None:
    tokenizer = Tokenizer()
    prompts = [tokenizer.encode(f"{edit.before if has_file else ''}{edit.question}\n") for edit in edits]
    answers = [tokenizer.encode(edit.answer) for edit in edits]
    num_tokens = sum(map(len, answers))
    within = Ngram(CTX)
    checks = {"own text": 0, "one process": 0, "memory": 0}
    with tempfile.TemporaryDirectory() as folder:
        for prompt, answer in zip(prompts, answers, strict=True):
            checks["own text"] += count_checks(Ngram(CTX), prompt, answer)
            checks["one process"] += count_checks(within, prompt, answer)
            memory = LookupMemory(Path(folder), MEMORY_TOKENS, N_VOCAB)
            checks["memory"] += count_checks(Ngram(CTX, memory=memory), prompt, answer)
    figures = "   ".join(f"{name} {num_tokens / max(number, 1):.2f}" for name, number in checks.items())
    sys.stdout.write(f"{'file in the prompt' if has_file else 'file not in the prompt':<24}{figures}\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", default=list(DEFAULT_FILES))
    parser.add_argument("--commits", type=int, default=30, help="of each file, the newest ones")
    given = parser.parse_args()
    for path in given.files:
        edits = list(read_edits(path, given.commits))
        sys.stdout.write(f"{path}: {len(edits)} conversations\n")
        for has_file in (True, False):
            measure(edits, has_file=has_file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
