"""Lookups that remember, beside llama-server's: python tests/measures/lookup_servers.py LLAMA_SERVER TARGET

Each server answers questions, and later each of them again with a change, each in a conversation of its own: what helps
with the second is what lookups remember of the first. A kind of llama-server is one server for all; ours with
--lookup-memory is a new process for the second half. Prints the speed of the second half (prompts counted) divided by
that of llama-server without drafts, which is asked in turn, with a 95% interval over the questions, and each ratio.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack

from first_word import Contender, Server, answer_chat, run_server

from eaglelocal.bench.results import bound_mean

KINDS = ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
TASKS = (
    ("Write a Python class Stack with the methods push and pop.", "Add a method peek."),
    ("Write a Python function that reads a CSV file and returns its rows.", "It should skip empty rows."),
    ("Write a letter to a landlord about a broken heater.", "Mention that it is winter."),
    ("Explain in five sentences how a bicycle stays upright.", "Use simple words."),
    ("Write an SQL query that counts the orders of each customer.", "Only orders of this year."),
    ("Write a recipe for pancakes with amounts and steps.", "For four people."),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("target")
    given = parser.parse_args()
    for kind in KINDS:
        show(f"llama-server, {kind}", measure(given, theirs(given, ("--spec-type", kind))))
    show("ours, lookup", measure(given, ours(given, ())))
    show("ours, lookup, a new process", measure(given, ours(given, ()), in_new_process=True))
    remembering = ours(given, ("--lookup-memory", "200000"))
    show("ours, --lookup-memory, a new process", measure(given, remembering, in_new_process=True))


def theirs(given: argparse.Namespace, flags: Sequence[str]) -> Contender:
    threads = str(len(os.sched_getaffinity(0)))
    command = (given.server, "-m", given.target, "-np", "1", "-c", "4096", "-t", threads, "--no-webui", *flags)
    return Contender("llama-server", command, False)


def ours(given: argparse.Namespace, flags: Sequence[str]) -> Contender:
    command = [sys.executable, "-m", "eaglelocal", "serve", "--no-tui", "--target", given.target, "--draft", "ngram"]
    return Contender("ours", (*command, "--parallel", "1", "--ctx", "4096", *flags), True)


def measure(given: argparse.Namespace, contender: Contender, *, in_new_process: bool = False) -> list[float]:
    """Return the speed of each changed question's answer, divided by llama-server's without drafts, asked in turn."""
    with tempfile.TemporaryDirectory() as state, ExitStack() as running, run_server(theirs(given, ())) as plain:
        os.environ["XDG_STATE_HOME"] = state
        server = running.enter_context(run_server(contender))
        for question, _ in TASKS:
            ask(server, question)
        if in_new_process:
            running.close()
            server = running.enter_context(run_server(contender))
        for one in (plain, server):
            ask(one, "Hello!")
        return [ask(server, text) / ask(plain, text) for text in map(" ".join, TASKS)]


def ask(server: Server, question: str) -> float:
    """Return the tokens a second of an answer."""
    seconds, reply = answer_chat(server, question)
    return int(reply["usage"]["completion_tokens"]) / seconds


def show(title: str, ratios: Sequence[float]) -> None:
    bound = bound_mean([ratios])
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{title:40} {bound.mean:.2f} ({bound.low:.2f} to {bound.high:.2f})   {each}", flush=True)


if __name__ == "__main__":
    main()
