"""Seconds until a prompt is read, ours beside another server: tests/measures/first_token.py OURS THEIRS [--words N ...]

Both are URLs of OpenAI-compatible servers that run here, such as http://127.0.0.1:8423/v1. Prompts of so many random
words, each asked of both, one after the other, for an answer of one token: no text is read twice by the same server.
Printed is the ratio theirs / ours with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.request
from statistics import median

from eaglelocal.bench.results import bound_mean

WORDS = ["river", "stone", "paper", "cloud", "window", "garden", "silver", "winter", "morning", "letter", "bridge"]


def post(url: str, text: str) -> tuple[float, int]:
    """Seconds, and tokens of the prompt."""
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as reply:
        result = json.load(reply)
    return time.perf_counter() - started, result["usage"]["prompt_tokens"]


def compare(ours: str, theirs: str, num_words: int, num_prompts: int, rng: random.Random) -> None:
    took: dict[str, list[float]] = {ours: [], theirs: []}
    num_tokens = 0
    for number in range(num_prompts):
        text = " ".join(rng.choices(WORDS, k=num_words))
        for url in (ours, theirs) if number % 2 else (theirs, ours):
            seconds, num_tokens = post(url, text)
            took[url].append(seconds)
    said = bound_mean([[b / a for a, b in zip(took[ours], took[theirs], strict=True)]])
    figures = f"{median(took[ours]):.2f} s, {median(took[theirs]):.2f} s"
    sys.stdout.write(
        f"{num_tokens:6} tokens: {figures}, theirs / ours {said.mean:.2f} ({said.low:.2f}..{said.high:.2f})\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--words", type=int, nargs="*", default=[120, 400, 900])
    parser.add_argument("--prompts", type=int, default=6)
    given = parser.parse_args()
    rng = random.Random(0)
    for url in (given.ours, given.theirs):
        post(url, "first of all")
    for num_words in given.words:
        compare(given.ours, given.theirs, num_words, given.prompts, rng)
