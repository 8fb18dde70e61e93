"""The first token after a restart, with the conversation on disk and without: python tests/measures/restarts.py TARGET

Servers with --cache-disk and without take turns. Each is asked a long prompt and stopped; the next one gets the
prompt, its answer and a further question. Prints the seconds until that one's first token.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence

from first_word import Comparison, Contender, Server, run_server

WORDS = ("the", "of", "a", "to", "and", "in", "is", "it", "for", "on", "with", "as", "at", "by", "an", "be", "this")
QUESTION = " What of all this comes first?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--tokens", type=int, nargs="*", default=[1500])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    for num_tokens in given.tokens:
        line = Comparison(f"{num_tokens} tokens: from disk, read anew")
        for seed in range(given.repeats):
            line.add(*(measure(given, num_tokens, seed, flags) for flags in (("--cache-disk", "20"), ())))
        line.show()


def measure(given: argparse.Namespace, num_tokens: int, seed: int, flags: Sequence[str]) -> float:
    """Return the seconds of the first token of the second question, after a restart between both."""
    command = [sys.executable, "-m", "eaglelocal", "serve", "--no-tui", "--target", given.target, *flags]
    command += ["--draft", given.draft, "--parallel", "1"]
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        contender = Contender("ours", tuple(command), True)
        with run_server(contender) as server:
            prompt = write_prompt(server, num_tokens, seed)
            _, reply = server.complete(prompt, 16)
        prompt += reply["choices"][0]["text"] + QUESTION
        with run_server(contender) as server:
            seconds, reply = server.complete(prompt)
        reused = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        print(f"  {' '.join(flags) or 'none'}: {seconds:.3f} s, {reused} tokens reused", file=sys.stderr)
        return seconds


def write_prompt(server: Server, num_tokens: int, seed: int) -> str:
    """Return random words that are about so many tokens."""
    draw = random.Random(seed)
    words = [draw.choice(WORDS) for _ in range(num_tokens)]
    share = num_tokens / server.count_tokens(" ".join(words))
    return " ".join(words[: int(num_tokens * share)])


if __name__ == "__main__":
    main()
