"""Plain speed as predicted from a file's header and the memory bandwidth against what is measured.

    python tests/measures/predicted_speed.py [--rounds N] [--threads N] [REF ...]

Each round generates a short answer, without drafts, and measures the bandwidth before and behind it, so that both see
the same machine; a model's figures are medians over its rounds. Prints a table, and one JSON object as the last line.
Models that do not fit the free memory are named and left out. Exits 1 if a prediction is further off than BOUND.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.memory.budget import RAM
from eaglelocal.planning.machine_spec import make_machine_spec
from eaglelocal.planning.options import make_file_option
from eaglelocal.planning.speed import make_curve, predict
from eaglelocal.preparation.decision import resolve
from eaglelocal.probe.bandwidth import measure_bandwidth
from eaglelocal.probe.machine import Bandwidth, Machine
from eaglelocal.probe.probe import probe

REFERENCES = tuple(f"demo@{size}:{kind}" for size in ("1b", "3b") for kind in ("bf16", "q8_0", "q4_0"))
BOUND = 0.20
NUM_TOKENS = 24
QUESTION = "Count from one to fifty, in words."
SPARE_BYTES = 3 * 2**30  # of memory, beside the weights


@dataclass(frozen=True)
class Round:
    bandwidth_bytes_s: float
    predicted_tok_s: float
    measured_tok_s: float


@dataclass(frozen=True)
class Row:
    reference: str
    read_bytes: int  # for a token
    bandwidth_gb_s: float
    predicted_tok_s: float
    measured_tok_s: float
    ratios: tuple[float, ...]  # measured / predicted, of each round

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_near(self) -> bool:
        return abs(1 / self.ratio - 1) <= BOUND


def machine_with(threads: int | None) -> Machine:
    """This one, as if it had only so many threads to use."""
    here = probe()
    return dataclasses.replace(
        here, cpu=dataclasses.replace(here.cpu, usable_threads=threads or here.cpu.usable_threads)
    )


def bandwidth_now(machine: Machine) -> Bandwidth:
    """Not the figure that is kept: what the memory gives at this moment."""
    return measure_bandwidth(
        threads=machine.cpu.usable_threads,
        cache_bytes=machine.cpu.last_level_cache_bytes,
        available_bytes=machine.memory.available_bytes,
    )


def one_round(client: EngineClient, path: Path, number: int, machine: Machine) -> Round:
    before = bandwidth_now(machine)
    measured = generated(client, number)
    behind = bandwidth_now(machine)
    between = dataclasses.replace(before, bytes_s=(before.bytes_s + behind.bytes_s) / 2)
    seen = dataclasses.replace(machine, cpu=dataclasses.replace(machine.cpu, bandwidth=between))
    return Round(between.bytes_s, predicted(path, seen), measured)


def predicted(path: Path, machine: Machine) -> float:
    catalog = load_catalog()
    option = make_file_option(
        ModelInfo.from_header(read_header(path)), reference=str(path), label=path.stem, catalog=catalog
    )
    predicted_machine = make_machine_spec(machine, catalog.machines)
    where = (RAM,) * (option.shape.n_layer + 1)
    curve = make_curve(option.model, where, predicted_machine, None, kv_type="f16", measured=None)
    return predict(curve, None).plain_tok_s


def generated(client: EngineClient, number: int) -> float:
    """Tokens a second from the first to the last token."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    request = ChatRequest(id=str(number), messages=(Message("user", QUESTION),), params=params)
    return client.stream(request).result().finished.timings.decode_tok_s


def measured_row(reference: str, num_rounds: int, machine: Machine) -> Row:
    chosen_options = RunOptions(target=reference, draft="none", spec="off", threads=machine.cpu.usable_threads)
    plan = resolve(chosen_options, on_progress=lambda fraction, what: None)
    with EngineClient(plan) as client:
        client.start()
        generated(client, 0)  # the first answer warms the caches
        rounds = [one_round(client, plan.target, number, machine) for number in range(1, num_rounds + 1)]
    return Row(
        reference=reference,
        read_bytes=option_read_bytes(plan.target),
        bandwidth_gb_s=statistics.median(each.bandwidth_bytes_s for each in rounds) / 1e9,
        predicted_tok_s=statistics.median(each.predicted_tok_s for each in rounds),
        measured_tok_s=statistics.median(each.measured_tok_s for each in rounds),
        ratios=tuple(each.measured_tok_s / each.predicted_tok_s for each in rounds),
    )


def option_read_bytes(path: Path) -> int:
    return read_shape(read_header(path)).active_bytes


def obstacle(reference: str) -> str:
    """Why this one cannot be measured here; empty where it can."""
    size, kind = reference.removeprefix("demo@").split(":")
    bytes_each = {"bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}[kind]
    wanted = float(size.removesuffix("b")) * 1e9 * bytes_each
    free = probe().memory.available_bytes or 0
    if wanted + SPARE_BYTES > free:
        return f"{wanted / 1e9:.1f} GB of weights, {free / 1e9:.1f} GB of memory free"
    return ""


def table(rows: list[Row]) -> str:
    lines = [f"{'model':<16}{'GB/token':>9}{'GB/s':>7}{'predicted':>11}{'measured':>10}{'ratio':>8}  rounds"]
    for row in rows:
        rounds = " ".join(f"{ratio:.2f}" for ratio in row.ratios)
        lines.append(
            f"{row.reference:<16}{row.read_bytes / 1e9:>9.2f}{row.bandwidth_gb_s:>7.1f}{row.predicted_tok_s:>11.2f}"
            f"{row.measured_tok_s:>10.2f}{row.ratio:>8.2f}  {rounds}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of the engine and of the measured bandwidth")
    parser.add_argument("references", nargs="*", default=REFERENCES)
    chosen = parser.parse_args()
    machine, rows = machine_with(chosen.threads), []
    for reference in chosen.references:
        problem = obstacle(reference)
        try:
            if not problem:
                rows.append(measured_row(reference, chosen.rounds, machine))
        except EagleLocalError as error:
            problem = error.message
        if problem:
            sys.stderr.write(f"{reference} left out: {problem}\n")
    sys.stdout.write(table(rows) + "\n")
    report = [dataclasses.asdict(row) | {"ratio": row.ratio, "is_near": row.is_near} for row in rows]
    sys.stdout.write(json.dumps({"bound": BOUND, "rows": report}) + "\n")
    return 0 if all(row.is_near for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
