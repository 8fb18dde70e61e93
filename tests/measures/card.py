"""The open questions of docs/architecture/gpu.md, answered in one run: python tests/measures/card.py [--out FILE.md]

Made for a machine with a graphics card, a llama-cpp-python that was built for it, and little time: the questions share
--seconds (of all: nine minutes), the most important ones first, and time that one leaves goes to those after it. Each
runs in a process of its own, so that none can spoil the others. What is found is printed at once and written to FILE.md
and FILE.json, so that a run that is cut off keeps it. Without a card the same questions are asked of smaller models.

    machine        devices, build, free memory
    files          the inflated models are written
    rows           what a decode of n rows costs, the first of each size, and a change of the number of rows
    work           plain, auto and four tokens ahead by kind of work, beside llama-server (--llama-server PATH)
    host           time of a step outside llama.cpp, for which a card waits
    caches         one cache with trees, or one for each slot with chains
    memory         predicted and real buffers, and what a card takes beyond them while it computes
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from card_questions import (
    Question,
    Setup,
    describe,
    measure_caches,
    measure_host_time,
    measure_memory,
    measure_rows,
    measure_work,
    usable_reference,
    write_files,
)

from eaglelocal.errors import EagleLocalError
from eaglelocal.probe.probe import probe

TOTAL_S, GRACE_S = 540.0, 15.0  # a question that takes so much longer than its share is ended
LAST_S = 5.0  # less time is not worth a question


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its weight: its share of the time is this, of the weights that are left."""

    name: str
    weight: float
    question: Question


def list_questions(setup: Setup) -> list[Asked]:
    large = [Asked(f"work {setup.large}", 25, measure_work(setup.large))] if setup.large else []
    return [
        Asked("machine", 2, describe),
        Asked("files", 20, write_files),
        *(Asked(f"rows {reference}", 7, measure_rows(reference)) for reference in setup.references),
        Asked(f"work {setup.small}", 18, measure_work(setup.small)),
        *large,
        Asked("memory", 6, measure_memory),
        Asked("host", 9, measure_host_time),
        Asked("caches", 18, measure_caches),
    ]


class Report:
    """What was found so far; written again with every line."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, list[dict[str, object]]()

    def add(self, question: str, text: str, **figures: object) -> None:
        self._found.append({"question": question, "text": text, **figures})
        sys.stdout.write(f"{question}: {text}\n")
        sys.stdout.flush()
        self._path.write_text(self._markdown(), encoding="utf-8")
        self._path.with_suffix(".json").write_text(json.dumps(self._found, indent=1) + "\n", encoding="utf-8")

    def _markdown(self) -> str:
        lines, last = ["# A card, measured", ""], ""
        for found in self._found:
            if found["question"] != last:
                last = str(found["question"])
                lines += ["", f"## {last}", ""] if len(lines) > 2 else [f"## {last}", ""]
            lines.append(f"- {found['text']}")
        return "\n".join(lines) + "\n"


def run_question(asked: Asked, seconds: float, limit_s: float, report: Report) -> None:
    """Run a question in a process of its own; it is ended with all that it started after limit_s."""
    command = [sys.executable, *sys.argv, "--only", asked.name, "--seconds", f"{seconds:.1f}"]
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        with ending(child, limit_s):
            assert child.stdout is not None
            for line in child.stdout:
                report.add(asked.name, **json.loads(line))
            code = child.wait()
        log.seek(0)
        lines = [line for line in log.read().splitlines() if line.strip()]
    if code:
        report.add(asked.name, f"ended with {code}: {lines[-1] if lines else 'without a word'}", code=code)


@contextlib.contextmanager
def ending(child: subprocess.Popen[str], limit_s: float) -> Iterator[None]:
    """Kill the child's session when the block is left, or so many seconds after it began."""

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    limit = threading.Timer(limit_s, kill)
    limit.start()
    try:
        yield
    finally:
        limit.cancel()
        kill()
        child.wait()


def answer(asked: Asked, setup: Setup, ends_at: float) -> int:
    """Answer one question here: a JSON object a line. Returns the exit code."""

    def report(text: str, **figures: object) -> None:
        sys.stdout.write(json.dumps({"text": text, **figures}) + "\n")
        sys.stdout.flush()

    try:
        asked.question(setup, ends_at, report)
    except EagleLocalError as problem:
        sys.stderr.write(f"{problem.message}\n")
        return 1
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("card.md"))
    parser.add_argument("--seconds", type=float, default=TOTAL_S)
    parser.add_argument("--small", help="reference of the model that most is measured with")
    parser.add_argument("--quantized", help="the same in four bits, for the cost of rows")
    parser.add_argument("--large", help="a larger one; '' leaves it out")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--only", help="a question, by its name")
    return parser.parse_args()


def make_setup(given: argparse.Namespace) -> Setup:
    """Return what is measured: as it was given, else by whether there is a card."""
    has_gpu = any(probe().backend_of(gpu) for gpu in probe().gpus) or probe().unified is not None
    size = "1b" if has_gpu else "300m"
    quantized = usable_reference(f"demo@{size}:q4_k_m", f"demo@{size}:q4_0")
    large = usable_reference("demo@8b:q4_k_m", "demo@8b:q4_0") if has_gpu else ""
    return Setup(
        small=given.small or f"demo@{size}:bf16",
        quantized=given.quantized or quantized,
        large=large if given.large is None else given.large,
        server=given.llama_server,
    )


def main() -> int:
    given = read_arguments()
    ends_at, setup = time.monotonic() + given.seconds, make_setup(given)
    questions = list_questions(setup)
    if given.only:
        (asked,) = [each for each in questions if each.name == given.only]
        return answer(asked, setup, ends_at)
    report = Report(given.out)
    report.add("setup", ", ".join(f"{name} {value}" for name, value in asdict(setup).items() if value), **asdict(setup))
    for number, asked in enumerate(questions):
        left_s = ends_at - time.monotonic()
        if left_s < LAST_S:
            report.add(asked.name, "no time was left")
            continue
        share = asked.weight / sum(each.weight for each in questions[number:])
        seconds = min(left_s - LAST_S, share * left_s)
        run_question(asked, seconds, min(seconds + GRACE_S, left_s), report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
