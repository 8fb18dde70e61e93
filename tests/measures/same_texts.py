"""Whether answers equal llama-server's, and their speed: same_texts.py LLAMA_SERVER TARGET [--draft DRAFT ...]

LLAMA_SERVER is a binary of the same llama.cpp, TARGET a GGUF file. Open questions of all kinds are answered greedily by
our server without drafts and by llama-server, and by our server with each DRAFT (`ngram`, or a file), in turn. Printed
is how many texts equal llama-server's and our plain ones, and the speed relative to both, as geometric means with
95 % intervals.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from first_word import Contender, Server, make_contenders, run_server

from eaglelocal.bench.results import bound_mean

QUESTIONS = Path(__file__).parent.parent / "real" / "questions" / "held_out.jsonl"


def make_servers(given: argparse.Namespace) -> list[Contender]:
    """Return llama-server and ours, both plain, and ours with each draft."""
    plain = argparse.Namespace(server=given.server, target=given.target, head=None)
    ours, theirs = make_contenders(plain, 1, with_head=False)
    flags = tuple(given.ours)
    drafted = []
    for draft in given.draft:
        command = [draft if word == "none" else word for word in ours.command]
        drafted.append(Contender(f"ours, {Path(draft).name}", (*command, *flags), True))
    return [theirs, Contender("ours, plain", (*ours.command, *flags), True), *drafted]


def answer(server: Server, question: str, num_tokens: int) -> tuple[str, float]:
    """Return the text, and the seconds of each token after the first."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": num_tokens, "temperature": 0}
    reply: dict[str, Any] = server.post("/v1/chat/completions", body)
    timings = reply["timings"]
    return reply["choices"][0]["message"]["content"], timings["predicted_ms"] / 1000 / timings["predicted_n"]


def show(name: str, answers: dict[str, list[tuple[str, float]]], others: list[str]) -> None:
    for other in others:
        pairs = list(zip(answers[name], answers[other], strict=True))
        num_equal = sum(mine[0] == theirs[0] for mine, theirs in pairs)
        bound = bound_mean([[theirs[1] / mine[1] for mine, theirs in pairs]])
        figures = f"{bound.mean:.3f} ({bound.low:.3f} to {bound.high:.3f})"
        print(f"{name:32} {num_equal} of {len(pairs)} texts are those of {other:14} speed {figures}")


def main(given: argparse.Namespace) -> None:
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["prompt"] for line in lines[:: max(1, len(lines) // given.questions)]]
    questions = questions[: given.questions]
    contenders = make_servers(given)
    answers: dict[str, list[tuple[str, float]]] = {contender.name: [] for contender in contenders}
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(run_server(contender)) for contender in contenders]
        for server in servers:
            answer(server, "Hello!", 20)
        for number, question in enumerate(questions):
            for server in servers if number % 2 else reversed(servers):
                answers[server.name].append(answer(server, question, given.max_tokens))
    theirs, plain, *drafted = answers
    show(plain, answers, [theirs])
    for name in drafted:
        show(name, answers, [theirs, plain])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("target")
    parser.add_argument("--draft", nargs="*", default=["ngram"])
    parser.add_argument("--ours", type=str.split, default=[], help="further flags of our server, as one text")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--max-tokens", type=int, default=120)
    main(parser.parse_args())
