"""How often the loop guard is wrong about honest texts, and how soon it notices made and real loops.

    python tests/measures/loops.py [--target FILE.gguf]

Honest: 2 000 texts of at most 2 000 tokens, half of them Python's own sources and this repository's pages, half of
them made: tables, lists, JSON, matrices, verses with refrains, dumps. With a target, also what it repeats when it may
not end its greedy answers to held-out questions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_HONEST = 2000
MAX_TOKENS = 2000
PIECE = re.compile(r" ?[A-Za-z]{1,5}|\d|\s+|.", re.S)  # about as a tokenizer cuts
WORDS = [
    "tea",
    "ship",
    "river",
    "stone",
    "apple",
    "seven",
    "green",
    "house",
    "north",
    "glass",
    "paper",
    "cloud",
    "winter",
    "train",
]


def written_texts() -> Iterator[str]:
    folders = [
        (Path(sysconfig.get_paths()["stdlib"]), "*.py"),
        (ROOT / "docs", "*.md"),
        (ROOT / "profiles", "**/*.toml"),
    ]
    for folder, pattern in folders:
        for path in sorted(folder.glob(pattern)):
            text = path.read_text(errors="replace")
            yield from (text[at : at + 8000] for at in range(0, len(text), 8000))


def made_texts(rng: random.Random) -> Iterator[str]:
    while True:
        rows, columns = rng.randint(20, 60), rng.randint(2, 8)
        names = [rng.choice(WORDS) for _ in range(columns)]
        numbers = [[rng.randint(0, 9) for _ in range(columns)] for _ in range(rows)]
        yield "\n".join("| " + " | ".join(map(str, row)) + " |" for row in numbers)
        yield "\n".join(f"{n}. {rng.choice(WORDS)} and {rng.choice(WORDS)}" for n in range(1, rows * 2))
        yield json.dumps([dict(zip(names, row, strict=True)) for row in numbers], indent=2)
        yield "\n".join(" ".join("1" if i == j else "0" for j in range(12)) for i in range(12))
        yield "\n".join(f"{n} x {rows} = {n * rows}" for n in range(1, 80))
        zeros = ", ".join(["0"] * columns * 5)
        yield "```python\nzeros = [\n" + f"    [{zeros}],\n" * rows + "]\n```\n"
        yield "```c\nstatic char data[] = {" + "0x00, " * rows * 4 + "};\n```\n"
        yield "```json\n[\n" + "  null,\n" * rows * 8 + "]\n```\n" + "| 0 | 0 |\n" * rows
        yield "\n\n".join(
            f"{rng.choice(WORDS)} {rng.choice(WORDS)},\n" + "Row, row, row your boat,\n" * 2 for _ in range(40)
        )
        yield "\n".join(f"{n * 16:08x}  " + " ".join(["00"] * 15 + [f"{rng.randint(0, 255):02x}"]) for n in range(60))
        yield "\n".join(
            f"    self.{name} = {name}\n    assert self.{name} is not None"
            for name in itertools.islice((f"{rng.choice(WORDS)}_{n}" for n in itertools.count()), 60)
        )
        yield (
            "<ul>\n"
            + "".join(f'  <li class="item"><a href="#{n}">{rng.choice(WORDS)}</a></li>\n' for n in range(90))
            + "</ul>"
        )
        yield ("-" * 60 + "\n" + f"{rng.choice(WORDS):<30}{rng.randint(1, 999):>30}\n") * 1 + "\n".join(
            f"{rng.choice(WORDS):<40}{'.' * 20}{rng.randint(1, 99)}" for _ in range(60)
        )


def notices_at(pieces: list[str]) -> int | None:
    """Return the number of tokens after which the guard notices a loop; None if it does not."""
    from eaglelocal.text.loop_guard import LoopGuard

    guard = LoopGuard()
    return next((n for n, piece in enumerate(pieces, start=1) if guard.push(piece)), None)


def measure_honest() -> None:
    rng = random.Random(1)
    written = [text for text in written_texts() if len(text) > 2000]
    rng.shuffle(written)
    texts = [*written[: NUM_HONEST // 2]]
    texts += itertools.islice(made_texts(rng), NUM_HONEST - len(texts))
    found = [text for text in texts if notices_at(PIECE.findall(text)[:MAX_TOKENS])]
    print(f"honest: {len(texts)} texts, {len(found)} false alarms")
    for text in found[:5]:
        print("   ", repr(text[:100]))


def measure_made_loops() -> None:
    rng = random.Random(2)
    delays = []
    for length in (1, 2, 3, 5, 8, 13, 21, 34, 50, 64):
        passage = [f" {rng.choice(WORDS)}" for _ in range(length)]
        pieces = [*(f" {rng.choice(WORDS)}{n}" for n in range(100)), *passage * (3000 // length)]
        delays.append((length, notices_at(pieces)))
    print("made loops, tokens of the passage and until it is noticed, after 100 others:", delays)


def find_last_period(text: str) -> int:
    """Return the length of the passage whose repetition ends the text; 0 if there is none."""
    return next((n for n in range(1, 150) if text[-400:] == text[-400 - n : -n]), 0)


def count_looped(pieces: list[str], period: int) -> int:
    """Return how many tokens at the end have this period."""
    text = "".join(pieces)
    start = len(text) - period
    while start and text[start - 1] == text[start - 1 + period]:
        start -= 1
    return sum(end > start for end in itertools.accumulate(map(len, pieces)))


def measure_target(target: str) -> None:
    from eaglelocal.bench.bench_prompts import read_prompts
    from eaglelocal.cli.chat import open_session
    from eaglelocal.cli.load_model import load_settings
    from eaglelocal.cli.output import standard_output
    from eaglelocal.core.events import Tokens
    from eaglelocal.core.request import ChatRequest
    from eaglelocal.core.run_options import ModelChoice
    from eaglelocal.core.sampling import SamplingParams

    session = open_session(load_settings({"target": target, "ctx": "2048"}), standard_output(), ModelChoice())
    loops = 0
    missed: list[tuple[int, str]] = []  # tokens of the loop, its passage
    for prompt in read_prompts(ROOT / "tests/real/questions/held_out.jsonl")[:40]:
        params = SamplingParams(temperature=0.0, max_tokens=1400, ignore_eos=True)
        pieces: list[str] = []
        for event in session.model.client.stream(
            ChatRequest(id=str(id(prompt)), messages=prompt.messages, params=params)
        ):
            pieces += [piece.text for piece in event.pieces] if isinstance(event, Tokens) else []
        if period := find_last_period("".join(pieces)):
            loops += 1
            if notices_at(pieces) is None:
                missed.append((count_looped(pieces, period), "".join(pieces)[-period:]))
    session.close()
    print(f"{target}: {loops} of 40 answers end in a loop, {loops - len(missed)} of them noticed")
    for num_tokens, passage in missed:
        print(f"    missed after {num_tokens} tokens of it: {passage!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target")
    arguments = parser.parse_args()
    measure_honest()
    measure_made_loops()
    if arguments.target:
        measure_target(arguments.target)
