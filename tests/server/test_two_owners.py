"""Two keys at one server: no figure, header or time tells one of them what the other wrote, nor what monitors read.

Real servers with the embedded model. Every search is also made with the writer's own key, which must find it: so the
text was there to be found. Drafts are searched in tests/engine (test_swap.py, test_auto.py, test_lookahead.py).
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles.serve_process import ServeProcess, serve

pytestmark = pytest.mark.slow

KEYS = {name: f"{name}-key-0123456789" for name in ("alice", "bob", "carol")}
MODEL = ("--target", "demo@native", "--ctx", "1024")
LETTER = (
    "Dear bank, here is what you asked for, in the order of your letter of the third of May. My name is Bob Miller, "
    "I live at 12 Long Street, and the number of my card is "
)
SECRET = "4821"
WORDS = random.Random(0).choices(range(300, 900), k=640)  # tokens of a text that is long enough for the disk
NUM_TEXTS = 36
GUESSES = {
    "right": lambda first: [first, *WORDS, 7, 8, 9, *WORDS[:40]],
    "wrong": lambda first: [first, *WORDS, 7, 9, 9, *WORDS[:40]],
    "other": lambda first: [first + 1, *WORDS, 7, 8, 9, *WORDS[:40]],  # no owner wrote its beginning
}
HOW_BUSY = ("running", "waiting", "eaglelocal:num_requests_running", "eaglelocal:num_requests_waiting")  # for all keys
OF_A_REQUEST = ("date", "x-request-id", "content-length")  # headers that differ anyway


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[ServeProcess]:
    keys = folder / "keys"
    keys.write_text("".join(f"{name}: {key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    with serve(*MODEL, "--api-key-file", str(keys), *flags, log=folder / "log") as server:
        yield server


def post(server: ServeProcess, owner: str, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEYS[owner]}"}
    reply = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply


def read_monitor(server: ServeProcess, owner: str) -> list[object]:
    """Return what monitors of this key read once its own request is over, without times and how busy the server is."""
    headers = {"Authorization": f"Bearer {KEYS[owner]}"}
    while (found := httpx.get(f"{server.url}/v1/snapshot", headers=headers, timeout=60).json())["requests"]:
        pass
    metrics = httpx.get(f"{server.url}/metrics", headers=headers, timeout=60).text
    lines = [line for line in metrics.splitlines() if not line.startswith(("#", *HOW_BUSY))]
    own = {name: value for name, value in found.items() if name not in HOW_BUSY}
    return [list_counts(own | {"recent": found["recent"][:1]}), lines]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def chat(server: ServeProcess, owner: str, text: str, **more: Any) -> int:
    """Return how many tokens of the prompt were found in a cache."""
    body = {"messages": user(text), "max_tokens": 1, "temperature": 0, **more}
    reply = post(server, owner, "/v1/chat/completions", body).json()
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def complete(server: ServeProcess, owner: str, tokens: Sequence[int], num_tokens: int = 1) -> httpx.Response:
    body = {"prompt": list(tokens), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return post(server, owner, "/v1/completions", body)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# ---- the search that found a number of four digits with 80 requests
def search_digits(server: ServeProcess, owner: str) -> str:
    """Guess a digit at a time, behind what is known; an unrelated request before each guess takes its own slot."""
    known = ""
    for place in range(len(SECRET)):
        found = {}
        for digit in "0123456789":
            chat(server, owner, f"Count the birds on roof {place}{digit}")
            found[digit] = chat(server, owner, LETTER + known + digit + " and so on and on" * 20)
        known += max(found, key=lambda digit: found[digit])
    return known


def test_a_number_is_not_found_digit_by_digit_while_its_writers_answers_run(tmp_path: Path) -> None:
    is_over = threading.Event()

    def write(length: int) -> None:
        while not is_over.is_set():
            chat(server, "bob", LETTER + SECRET + ". Please write back soon; " * 6, max_tokens=length, ignore_eos=True)
            length = 600

    with serving(tmp_path, "--parallel", "4") as server:
        # never do all three read their prompt at once
        writers = [threading.Thread(target=write, args=(length,)) for length in (200, 400, 600)]
        for writer in writers:
            writer.start()
        try:
            while chat(server, "bob", LETTER + SECRET) < 50:
                pass
            assert search_digits(server, "alice") != SECRET
            assert search_digits(server, "bob") == SECRET
        finally:
            is_over.set()
            for writer in writers:
                writer.join()


# ---- everything that a reply shows
@dataclass
class Shown:
    """What the replies to one kind of guess show."""

    figures: set[str] = field(default_factory=set)
    ttft_ms: list[float] = field(default_factory=list)

    def add(self, reply: httpx.Response, monitor: list[object]) -> None:
        headers = sorted((name, value) for name, value in reply.headers.items() if name not in OF_A_REQUEST)
        body = reply.json()
        self.ttft_ms.append(body["timings"]["ttft_ms"])
        self.figures.add(repr((headers, list_counts(body), monitor)))


def list_counts(value: object, place: str = "") -> list[tuple[str, object]]:
    """Return all that a body holds, without times and what belongs to the request: its id, its text."""
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if name not in ("id", "created", "text")}
        return [each for name, one in sorted(kept.items()) for each in list_counts(one, f"{place}.{name}")]
    if isinstance(value, list):
        return [each for number, one in enumerate(value) for each in list_counts(one, f"{place}.{number}")]
    return [] if isinstance(value, float) else [(place, value)]


def share_above(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the share of pairs in which the first is larger: a half if both are alike."""
    return sum((one > other) + (one == other) / 2 for one in ones for other in others) / (len(ones) * len(others))


def guess(server: ServeProcess, owner: str, texts: range, write: Callable[[int], None]) -> dict[str, Shown]:
    """Send one guess at each text, of each kind equally often."""
    kinds = [kind for kind in GUESSES for _ in range(len(texts) // len(GUESSES))]
    random.Random(1).shuffle(kinds)
    shown = {kind: Shown() for kind in GUESSES}
    for number, kind in zip(texts, kinds, strict=True):
        write(first_token(number))
        reply = complete(server, owner, GUESSES[kind](first_token(number)))
        shown[kind].add(reply, read_monitor(server, owner))
    return shown


def first_token(number: int) -> int:
    """Return the first token of a text, with which no other text and no other guess begins."""
    return 1000 + 2 * number


def check(by_another: dict[str, Shown], by_its_writer: dict[str, Shown]) -> None:
    right, wrong, other = by_another.values()
    assert right.figures == wrong.figures == other.figures and len(right.figures) == 1
    above = share_above(other.ttft_ms, right.ttft_ms + wrong.ttft_ms)
    print(f"what nobody wrote takes longer in {above:.0%} of all pairs")  # shown by pytest -s
    assert 0.15 < above < 0.85
    assert by_its_writer["right"].figures != by_its_writer["other"].figures
    assert share_above(by_its_writer["other"].ttft_ms, by_its_writer["right"].ttft_ms) > 0.85


@pytest.mark.parametrize(
    ("flags", "num_tokens"),
    [
        (("--parallel", "1"), 2),
        (("--parallel", "1", "--cache-ram", "0"), 2),
        (("--parallel", "8"), 2),
        (("--parallel", "8"), 60),  # the answer runs while it is guessed at
        (("--parallel", "2", "--cache-disk", "1"), 2),
    ],
    ids=["one slot", "no ram", "eight slots", "running", "disk"],
)
def test_no_figure_header_or_time_reveals_a_guess(tmp_path: Path, flags: tuple[str, ...], num_tokens: int) -> None:
    with serving(tmp_path, *flags, "--spec", "off") as server:

        def write(first: int) -> None:
            prompt = [first, *WORDS, 7, 8, 9, 10, 11]
            writer = threading.Thread(target=complete, args=(server, "bob", prompt, num_tokens))
            writer.start()
            writer.join(0.3 if num_tokens > 2 else None)

        by_another = guess(server, "alice", range(NUM_TEXTS), write)
        by_its_writer = guess(server, "bob", range(NUM_TEXTS, 2 * NUM_TEXTS), write)
    check(by_another, by_its_writer)


def test_after_a_restart_the_disk_reveals_nothing_either(tmp_path: Path) -> None:
    flags = ("--parallel", "1", "--cache-disk", "1", "--spec", "off")
    with serving(tmp_path, *flags) as server:
        for number in range(2 * NUM_TEXTS):
            complete(server, "bob", [first_token(number), *WORDS, 7, 8, 9, 10, 11])
    with serving(tmp_path, *flags) as server:
        by_another = guess(server, "alice", range(NUM_TEXTS), lambda first: None)
        by_its_writer = guess(server, "bob", range(NUM_TEXTS, 2 * NUM_TEXTS), lambda first: None)
    check(by_another, by_its_writer)


# ---- the other dialects
DIALECTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/chat/completions": lambda text: {"messages": user(text), "max_tokens": 1},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 1},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 16},
    "/v1/messages": lambda text: {"messages": user(text), "max_tokens": 1},
    "/api/chat": lambda text: {"messages": user(text), "stream": False, "options": {"num_predict": 1}},
    "/api/generate": lambda text: {"prompt": text, "stream": False, "options": {"num_predict": 1}},
    "/completion": lambda text: {"prompt": text, "n_predict": 1},
}


@pytest.mark.parametrize("path", DIALECTS)
def test_no_dialect_counts_what_another_key_has_cached(tmp_path: Path, path: str) -> None:
    def find_counts(owner: str, text: str) -> list[tuple[str, object]]:
        reply = post(server, owner, path, DIALECTS[path](text))
        return [(place, count) for place, count in list_counts(reply.json()) if "cache" in place]

    texts = [f"{digit} is the number of this letter. {LETTER}" for digit in "123"]
    with serving(tmp_path, "--parallel", "8") as server:
        for text in texts[:2]:
            find_counts("bob", text)
        nothing = find_counts("alice", texts[2])
        assert find_counts("carol", texts[0]) == nothing
        assert find_counts("bob", texts[1]) != nothing


def test_a_shared_beginning_is_found_by_every_key_and_nothing_behind_it(tmp_path: Path) -> None:
    system = "You are the assistant of a small house. " + "Answer in short and friendly words. " * 12
    (tmp_path / "system").write_text(system)
    with serving(tmp_path, "--parallel", "4", "--shared-prefix", str(tmp_path / "system")) as server:

        def ask(owner: str, text: str, before: str = system) -> int:
            messages = [{"role": "system", "content": before}, *user(text)]
            body = {"messages": messages, "max_tokens": 1, "temperature": 0}
            reply = post(server, owner, "/v1/chat/completions", body).json()
            return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

        ask("bob", LETTER + SECRET)
        right = ask("alice", LETTER + SECRET)
        assert ask("carol", "Anything else.", f"{system}More follows.") == right > 60
        assert ask("bob", f"{LETTER}{SECRET}5") > right + 40
