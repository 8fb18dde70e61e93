"""Time to the first token beside llama-server: first_word.py LLAMA_SERVER TARGET [--head HEAD] [--parts PART ...]

LLAMA_SERVER is a binary of the same llama.cpp, TARGET and HEAD are GGUF files. For one and for eight slots, plain and
with the head, both servers run side by side and are asked in turn, each time a text that neither has read. Printed is
theirs / ours (above 1: we are faster), a geometric mean with its 95 % interval.

    prompts   seconds until a prompt of so many tokens is answered by one token; first those right after the start,
              while our weights move to huge pages
    turns     the second turn of such a conversation
    crowded   a new conversation while every slot holds a long one, beside an empty server's
    start     from the command to 200 from /health, the first time and later
    totals    tokens a second, prompts counted, of 1, 2, 4 and 8 requests at once, beside each of their settings

With --best, their settings are: plain, the head with the default length and with 12 tokens, the copy of the head in
q4_0 that --quantized-head names, and ngram-simple; else plain, or the head with the default length.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from eaglelocal.bench.results import bound_mean

WORDS = ["river", "stone", "paper", "cloud", "window", "garden", "silver", "winter", "morning", "letter", "bridge"]
QUESTIONS = [
    "Tell me about the otters of the valley.",
    "How do I make a simple bread?",
    "Write a function that reverses a list.",
    "What is the weather like in the mountains?",
    "Explain what a river does in winter.",
    "Give me five names for a boat.",
]
PARTS = ("prompts", "turns", "crowded", "start", "totals")
SLOT_CTX = 2048
ANSWER_TOKENS = 100
PATIENCE_S = 120.0
FIRST_TOKENS = 60
SETTLING_S = 10.0  # in which our weights have moved to huge pages
PAUSE_S = 0.05  # before each request: the threads of the server asked before spin for some milliseconds afterwards


@dataclass(frozen=True)
class Contender:
    """A server as it is started: `command` without address."""

    name: str
    command: tuple[str, ...]
    is_ours: bool

    def make_command(self, port: int) -> list[str]:
        return [*self.command, "--host", "127.0.0.1", "--port", str(port)]


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    start_s: float

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def complete(self, prompt: str, num_tokens: int = 1) -> tuple[float, dict[str, Any]]:
        """Return the seconds and the reply of a plain completion."""
        time.sleep(PAUSE_S)
        started_at = time.perf_counter()
        reply = self.post("/v1/completions", {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0})
        return time.perf_counter() - started_at, reply

    def count_tokens(self, text: str) -> int:
        return len(self.post("/tokenize", {"content": text})["tokens"])


def make_contenders(given: argparse.Namespace, num_slots: int, *, with_head: bool) -> tuple[Contender, Contender]:
    ours = [sys.executable, "-m", "eaglelocal", "serve", "--no-tui", "--target", given.target]
    ours += ["--parallel", str(num_slots), "--ctx", str(SLOT_CTX)]
    ours += ["--draft", given.head, "--spec", "auto"] if with_head else ["--draft", "none"]
    theirs = [given.server, "-m", given.target, "-np", str(num_slots), "-c", str(num_slots * SLOT_CTX)]
    theirs += ["-t", str(len(os.sched_getaffinity(0))), "--no-webui"]
    theirs += ["-md", given.head, "--spec-type", "draft-eagle3"] if with_head else []
    return Contender("ours", tuple(ours), True), Contender("llama-server", tuple(theirs), False)


def make_rivals(given: argparse.Namespace, num_slots: int, *, with_head: bool) -> list[Contender]:
    """Return llama-server's settings for the totals."""
    theirs = make_contenders(given, num_slots, with_head=with_head)[1]
    if not given.best:
        return [theirs]
    plain = make_contenders(given, num_slots, with_head=False)[1].command
    settings = {"plain": (), "ngram-simple": ("--spec-type", "ngram-simple")}
    for name, head in (("head", given.head), ("q4_0 head", given.quantized_head)):
        if head:
            settings[name] = ("-md", head, "--spec-type", "draft-eagle3")
            settings[f"{name}, 12"] = (*settings[name], "--spec-draft-n-max", "12")
    return [Contender(name, (*plain, *added), False) for name, added in settings.items()]


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def run_server(contender: Contender) -> Iterator[Server]:
    """Start a server and wait until its /health answers 200; stop it at the end."""
    port = find_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        started_at = time.perf_counter()
        process = subprocess.Popen(
            contender.make_command(port), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while not is_healthy(url):
                if process.poll() is not None or time.perf_counter() - started_at > PATIENCE_S:
                    log.seek(0)
                    raise SystemExit(f"{contender.name} does not start: {log.read().decode()[-2000:]}")
                time.sleep(0.005)
            yield Server(contender.name, url, time.perf_counter() - started_at)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


class Comparison:
    """Seconds of both servers, asked in turn, for one line of the table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._ours: list[float] = []
        self._theirs: list[float] = []

    def add(self, ours: float, theirs: float) -> None:
        self._ours.append(ours)
        self._theirs.append(theirs)

    def show(self, *, unit: str = "s", rate: bool = False) -> None:
        """Print the line; rate: larger figures are better."""
        pairs = list(zip(self._ours, self._theirs, strict=True))
        bound = bound_mean([[a / b if rate else b / a for a, b in pairs]])
        figures = f"{median(self._ours):9.3f} {median(self._theirs):9.3f} {unit:6}"
        sys.stdout.write(f"{self._title:44} {figures} {bound.mean:5.2f} ({bound.low:.2f} to {bound.high:.2f})\n")
        sys.stdout.flush()


class Texts:
    """Prompts of a wanted number of tokens, none of which was used before."""

    def __init__(self, server: Server, seed: int) -> None:
        self._rng = random.Random(seed)
        self._server = server

    def draw(self, num_tokens: int) -> str:
        words = self._rng.choices(WORDS, k=num_tokens * 2)
        low, high = 1, len(words)
        while low < high:  # the fewest words with so many tokens
            middle = (low + high) // 2
            if self._server.count_tokens(" ".join(words[:middle])) < num_tokens:
                low = middle + 1
            else:
                high = middle
        return " ".join(words[:low])


def ask_in_turn(number: int, ours: Server, theirs: Server, ask: Callable[[Server], float]) -> tuple[float, float]:
    """Ask both, every other time the other one first."""
    order = (ours, theirs) if number % 2 else (theirs, ours)
    taken = {server.name: ask(server) for server in order}
    return taken[ours.name], taken[theirs.name]


def measure_prompts(ours: Server, theirs: Server, texts: Texts, given: argparse.Namespace, label: str) -> None:
    measure_prompt(ours, theirs, texts, FIRST_TOKENS, given.repeats, f"{label}: prompt of {FIRST_TOKENS} at the start")
    time.sleep(SETTLING_S)
    for num_tokens in given.tokens:
        measure_prompt(ours, theirs, texts, num_tokens, given.repeats, f"{label}: prompt of {num_tokens}")


def measure_prompt(ours: Server, theirs: Server, texts: Texts, num_tokens: int, repeats: int, title: str) -> None:
    line = Comparison(title)
    for number in range(repeats):
        text = texts.draw(num_tokens)
        line.add(*ask_in_turn(number, ours, theirs, lambda server, text=text: server.complete(text)[0]))
    line.show()


def measure_turns(ours: Server, theirs: Server, texts: Texts, given: argparse.Namespace, label: str) -> None:
    for num_tokens in given.tokens:
        line = Comparison(f"{label}: second turn after {num_tokens}")
        for number in range(given.repeats):
            first, more = texts.draw(num_tokens), texts.draw(20)
            for server in (ours, theirs):
                server.complete(first)
            whole = f"{first} {more}"
            line.add(*ask_in_turn(number, ours, theirs, lambda server, whole=whole: server.complete(whole)[0]))
        line.show()


def measure_crowded(ours: Server, theirs: Server, texts: Texts, num_slots: int, label: str) -> None:
    empty, crowded = Comparison(f"{label}: new conversation, empty"), Comparison(f"{label}: the same, crowded")
    for number in range(num_slots):
        text = texts.draw(40)
        empty.add(*ask_in_turn(number, ours, theirs, lambda server, text=text: server.complete(text)[0]))
    long_texts = [texts.draw(1500) for _ in range(num_slots)]
    for server in (ours, theirs):
        with concurrent.futures.ThreadPoolExecutor(num_slots) as pool:
            list(pool.map(server.complete, long_texts))
    for number in range(num_slots):
        text = texts.draw(40)
        crowded.add(*ask_in_turn(number, ours, theirs, lambda server, text=text: server.complete(text)[0]))
    empty.show()
    crowded.show()


def measure_start(contenders: tuple[Contender, Contender], repeats: int, label: str) -> None:
    line = Comparison(f"{label}: start to /health")
    for number in range(repeats + 1):
        taken: list[float] = []
        for contender in contenders:
            with run_server(contender) as server:
                taken.append(server.start_s)
        if number:
            line.add(*taken)
        else:
            sys.stdout.write(f"{label}: first start {taken[0]:.2f} s, {taken[1]:.2f} s\n")
    line.show()


def measure_totals(ours: Server, rivals: Sequence[Server], texts: Texts, repeats: int, label: str) -> None:
    for at_once in (1, 2, 4, 8):
        lines = [Comparison(f"{label}: {at_once} at once, {rival.name}") for rival in rivals]
        for number in range(repeats):
            prompts = [f"{texts.draw(60)}. {QUESTIONS[i % len(QUESTIONS)]}" for i in range(at_once)]
            servers = [ours, *rivals] if number % 2 else [*reversed(rivals), ours]
            speeds = {server.name: tokens_per_s(server, prompts) for server in servers}
            for line, rival in zip(lines, rivals, strict=True):
                line.add(speeds[ours.name], speeds[rival.name])
        for line in lines:
            line.show(unit="tok/s", rate=True)


def tokens_per_s(server: Server, prompts: Sequence[str]) -> float:
    started_at = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        replies = [reply for _, reply in pool.map(lambda text: answer_chat(server, text), prompts)]
    elapsed_s = time.perf_counter() - started_at
    return sum(reply["usage"]["total_tokens"] for reply in replies) / elapsed_s


def answer_chat(server: Server, text: str) -> tuple[float, dict[str, Any]]:
    started_at = time.perf_counter()
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": ANSWER_TOKENS, "temperature": 0}
    reply = server.post("/v1/chat/completions", body)
    return time.perf_counter() - started_at, reply


def measure_texts(
    given: argparse.Namespace, contenders: tuple[Contender, Contender], num_slots: int, label: str
) -> None:
    with run_server(contenders[0]) as ours, run_server(contenders[1]) as theirs:
        texts = Texts(theirs, given.seed)
        for server in (ours, theirs):
            server.complete(texts.draw(100))
        if "crowded" in given.parts and num_slots > 1:  # first, while nothing is cached
            measure_crowded(ours, theirs, texts, num_slots, label)
        if "prompts" in given.parts:
            measure_prompts(ours, theirs, texts, given, label)
        if "turns" in given.parts:
            measure_turns(ours, theirs, texts, given, label)


def measure(given: argparse.Namespace, num_slots: int, *, with_head: bool) -> None:
    label = f"{num_slots} slot{'s' * (num_slots > 1)}, {'head' if with_head else 'plain'}"
    contenders = make_contenders(given, num_slots, with_head=with_head)
    if "start" in given.parts:
        measure_start(contenders, given.repeats, label)
    if set(given.parts) & {"crowded", "prompts", "turns"}:
        measure_texts(given, contenders, num_slots, label)
    if "totals" in given.parts and num_slots > 1:
        with contextlib.ExitStack() as running:
            ours, *rivals = (
                running.enter_context(run_server(contender))
                for contender in (contenders[0], *make_rivals(given, num_slots, with_head=with_head))
            )
            texts = Texts(rivals[0], given.seed)
            measure_totals(ours, rivals, texts, given.repeats, label)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("target")
    parser.add_argument("--head")
    parser.add_argument("--quantized-head")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--tokens", type=int, nargs="*", default=[60, 200, 500, 1500])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("plain", "head"))
    given = parser.parse_args()
    given.server, given.target = str(Path(given.server).resolve()), str(Path(given.target).resolve())
    sys.stdout.write(f"{'':44} {'ours':>9} {'theirs':>9} {'':6} theirs / ours\n")
    kinds = [False, True] if given.head else [False]
    kinds = [kind for kind in kinds if given.only in (None, "head" if kind else "plain")]
    for num_slots in given.slots:
        for with_head in kinds:
            measure(given, num_slots, with_head=with_head)
