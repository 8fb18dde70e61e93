"""Many clients of a real server: python tests/measures/disconnecting_clients.py [--target REF] [--requests N] ...

16 streaming clients ask some 40 different questions over and over, greedy and with seeds, and hang up on a third of
them at random points. Every complete answer is compared with the one given alone (before, one at a time); a greedy one
that differs must do so at a near-tie of the answer given alone. Afterwards nothing may run, and every cell must be
accounted for. Then two keys, one with ten times the load: how long the light one waits. Exits 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

from doubles.serve_process import ServeProcess, serve
from doubles.streaming import Json, Streamed, ask, connections

from eaglelocal.bench.bench_prompts import builtin_prompts

NUM_CLIENTS = 16
TIE = 0.1  # of two log-probabilities
MAX_TOKENS = 40
KEYS = {"heavy": "heavy-key-0123456789", "light": "light-key-0123456789"}


def questions(count: int) -> list[Json]:
    """Every second one greedy, the others with a seed and a temperature."""
    asked = []
    for i, prompt in enumerate(builtin_prompts((), 8)[:: max(56 // count, 1)][:count]):
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        sampling = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.8, "top_p": 0.95, "seed": i}
        asked.append({"messages": messages, "max_tokens": MAX_TOKENS, **sampling})
    return asked


async def alone(url: str, asked: list[Json], key: str) -> list[Streamed]:
    async with connections(url, 1, key=key) as client:
        return [await ask(client, {**body, "logprobs": True, "top_logprobs": 2}) for body in asked]


async def together(url: str, asked: list[Json], order: list[tuple[int, int | None]], key: str) -> list[Streamed]:
    """`order`: which question, and after how many chunks to hang up."""
    todo = list(enumerate(order))
    got: dict[int, Streamed] = {}

    async def work(client: httpx.AsyncClient) -> None:
        while todo:
            number, (question, leave_after) = todo.pop()
            got[number] = await ask(client, asked[question], leave_after=leave_after)

    async with connections(url, NUM_CLIENTS, key=key) as client:
        await asyncio.gather(*(work(client) for _ in range(NUM_CLIENTS)))
    return [got[number] for number in range(len(order))]


def is_near_tie(result: Streamed, text: str) -> bool:
    """Does the text part from the answer given alone where its two best tokens were nearly equal?"""
    said = ""
    for entry in result.logprobs:
        token = bytes(entry["bytes"]).decode("utf-8", "replace")
        if not text.startswith(said + token):
            best = [top["logprob"] for top in entry["top_logprobs"]]
            return len(best) == 2 and best[0] - best[1] < TIE
        said += token
    return False


def mixed(server: ServeProcess, num_requests: int) -> bool:
    key, rng = KEYS["heavy"], random.Random(5)
    asked = questions(40)
    single = asyncio.run(alone(server.url, asked, key))
    order = [
        (rng.randrange(len(asked)), rng.randrange(1, 12) if rng.random() < 1 / 3 else None) for _ in range(num_requests)
    ]
    started_at = time.monotonic()
    got = asyncio.run(together(server.url, asked, order, key))
    took_s = time.monotonic() - started_at
    complete = [(q, one) for (q, leave), one in zip(order, got, strict=True) if leave is None]
    failed = [one for _, one in complete if not one.is_complete]
    differ = [(q, one) for q, one in complete if one.is_complete and one.text != single[q].text]
    greedy = [(q, one) for q, one in differ if asked[q]["temperature"] == 0]
    ties = [one for q, one in greedy if is_near_tie(single[q], one.text)]
    print(f"{num_requests} requests in {took_s:.0f} s, {len(order) - len(complete)} hung up, {len(failed)} failed")
    print(
        f"{len(complete)} complete: {len(complete) - len(differ)} as given alone, {len(greedy)} greedy ones differ "
        f"({len(ties)} at near-ties), {len(differ) - len(greedy)} sampled ones differ"
    )
    for one in failed[:3]:
        print("failed:", one.status, one.error, one.finish_reason)
    for q, one in [pair for pair in greedy if pair[1] not in ties][:3]:
        print(f"no tie:\n  alone    {single[q].text!r}\n  together {one.text!r}")
    sampled = len(differ) - len(greedy)  # a draw may fall beside a border between two tokens, once in a long while
    return not failed and len(ties) == len(greedy) and sampled <= len(complete) // 100 and at_rest(server, key)


def at_rest(server: ServeProcess, key: str) -> bool:
    """Nothing runs a moment later."""
    time.sleep(1.0)
    headers = {"Authorization": f"Bearer {key}"}
    found = httpx.get(f"{server.url}/v1/snapshot", headers=headers, timeout=30).json()
    left = (found["running"], found["waiting"], len(found["requests"]))
    kept, miscounted = found["engine"]["cached_tokens"], found["engine"]["miscounted_slots"]
    print(f"afterwards: {left[0]} run, {left[1]} wait; {kept} tokens are kept for reuse, in slots {miscounted} others")
    return left == (0, 0, 0) and not miscounted


async def waits(url: str, num_heavy: int, num_light: int) -> tuple[list[Streamed], list[Streamed]]:
    """The heavy key asks ten at a time, the light one one after the other."""
    asked = questions(20)
    light_done = asyncio.Event()

    async def heavy(client: httpx.AsyncClient) -> list[Streamed]:
        got = []
        while not light_done.is_set():
            got.append(await ask(client, random.choice(asked)))
        return got

    async def light(client: httpx.AsyncClient) -> list[Streamed]:
        await asyncio.sleep(2.0)
        got = [await ask(client, asked[i % len(asked)]) for i in range(num_light)]
        light_done.set()
        return got

    async with (
        connections(url, num_heavy, key=KEYS["heavy"]) as many,
        connections(url, 1, key=KEYS["light"]) as one,
    ):
        *crowd, got = await asyncio.gather(*(heavy(many) for _ in range(num_heavy)), light(one))
    return [each for result in crowd for each in result], got


def fairness(server: ServeProcess, num_slots: int) -> bool:
    heavy, light = asyncio.run(waits(server.url, 10 * num_slots, 20))
    wait_s, heavy_s = (statistics.median(map(waited_s, result)) for result in (light, heavy))
    duration_s = statistics.median(one.took_s - waited_s(one) for one in light)
    print(
        f"two keys, {10 * num_slots} askers against one: the light key waits {wait_s:.2f} s for its turn (median), "
        f"the heavy one {heavy_s:.2f} s; then a request of the light key takes {duration_s:.2f} s"
    )
    return wait_s < duration_s


def waited_s(one: Streamed) -> float:
    """Until it had a slot: what its first token took, without the reading of its prompt."""
    return float(one.timings["ttft_ms"] - one.timings["prompt_ms"]) / 1000 if one.timings else one.took_s


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--slots", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys")
        keys.touch(mode=0o600)
        keys.write_text("".join(f"{name}: {key}\n" for name, key in KEYS.items()))
        arguments = ("--target", chosen.target, "--parallel", str(chosen.slots), "--api-key-file", str(keys))
        with serve(*arguments, "--max-waiting", "256") as server:
            fine = [mixed(server, chosen.requests), fairness(server, chosen.slots)]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())
