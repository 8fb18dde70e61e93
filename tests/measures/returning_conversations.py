"""Seconds until a conversation continues that lost its slot: returning_conversations.py ONE OTHER [--words N ...]

Both are URLs of OpenAI-compatible servers with one slot that run here, such as http://127.0.0.1:8423/v1 of `serve
--parallel 1` and of `serve --parallel 1 --cache-ram 0`. Two conversations take turns at each; every turn tells all that
was said before, and is timed until its one token is there. Printed is the ratio other / one with its 95 % interval.
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
NUM_CHATS = 2
Messages = list[dict[str, str]]


def seconds(url: str, messages: Messages) -> tuple[float, int]:
    """Until one token is answered, and tokens of the prompt."""
    asked = {"messages": messages, "max_tokens": 1, "temperature": 0}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url.rstrip('/')}/chat/completions", json.dumps(asked).encode(), headers)
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as reply:
        result = json.load(reply)
    return time.perf_counter() - started, result["usage"]["prompt_tokens"]


def compare(one: str, other: str, num_words: int, num_turns: int, rng: random.Random) -> None:
    chats: list[Messages] = [[question(rng, num_words)] for _ in range(NUM_CHATS)]
    took: dict[str, list[float]] = {one: [], other: []}
    num_tokens = 0
    for turn in range(1 + num_turns):
        for number, chat in enumerate(chats):
            for url in (one, other) if (turn + number) % 2 else (other, one):
                waited, num_tokens = seconds(url, chat)
                if turn:  # before, both read it for the first time
                    took[url].append(waited)
            chat += [{"role": "assistant", "content": "I see."}, question(rng, 8)]
    said = bound_mean([[b / a for a, b in zip(took[one], took[other], strict=True)]])
    figures = f"{median(took[one]):.3f} s, {median(took[other]):.3f} s"
    sys.stdout.write(
        f"{num_tokens:6} tokens: {figures}, other / one {said.mean:.2f} ({said.low:.2f}..{said.high:.2f})\n"
    )
    sys.stdout.flush()


def question(rng: random.Random, num_words: int) -> dict[str, str]:
    return {"role": "user", "content": " ".join(rng.choices(WORDS, k=num_words))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("one")
    parser.add_argument("other")
    parser.add_argument("--words", type=int, nargs="*", default=[250, 500, 900])
    parser.add_argument("--turns", type=int, default=4)
    given = parser.parse_args()
    rng = random.Random(0)
    for num_words in given.words:
        compare(given.one, given.other, num_words, given.turns, rng)
