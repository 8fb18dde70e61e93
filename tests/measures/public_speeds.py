"""What `plan` predicts beside published speeds: python tests/measures/public_speeds.py CSV [--rows] [--fitted NAME]

CSV has a line for each published measurement, with at least these columns; others are ignored:

    machine id, model, quant   as the catalog calls them
    engine                     may hold `depth=N`: the cells in the cache while it was measured; else few
    ctx                        tokens of context of the run
    draft, length              `none` or `mtp`, and how many tokens were drafted; empty: the tool's own choice
    plain_tok_s, spec_tok_s    measured tokens a second; empty: not measured

Prints the median error of plain speeds and of gains, by kind of device and kind of model, and where drafting is
planned although a line says that it loses. An error is |log(predicted / measured)|, as a share. Lines that cannot be
planned are named with their reason. --rows prints every line. Exits 1 if a bound is missed, 2 on a file that cannot
be read.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.core.run_options import NONE, RunOptions
from eaglelocal.errors import EagleLocalError
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate_evaluation import CandidateEvaluator
from eaglelocal.planning.machine_spec import MachineSpec, make_known_spec
from eaglelocal.planning.options import NO_DRAFT_OPTION, DraftOption, ModelOption, make_catalog_options
from eaglelocal.planning.speed import Curve

COLUMNS = ("machine id", "model", "quant", "engine", "ctx", "draft", "length", "plain_tok_s", "spec_tok_s")
PLAIN_BOUND, GAIN_BOUND, FAMILY_BOUND = 0.07, 0.10, 0.12
LEAST_OF_FAMILY = 4  # measurements, to be judged
EMPTY_CELLS = 256  # in the cache, of a measurement that names no depth: llama-bench generates 128 tokens
DEPTH = re.compile(r"depth=(\d+)")
OFFLOAD = re.compile(r"gpu_layers=(\d+) n_cpu_moe=(\d+)")


class RowError(Exception):
    """A line that cannot be planned, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published measurement."""

    line: int
    machine: str
    model: str
    quant: str
    engine: str
    draft: str
    length: int | None
    plain_tok_s: float | None
    spec_tok_s: float | None

    @property
    def num_cells(self) -> int:
        depth = DEPTH.search(self.engine)
        return max(int(depth[1]), EMPTY_CELLS) if depth else EMPTY_CELLS

    @property
    def gain(self) -> float | None:
        return self.spec_tok_s / self.plain_tok_s if self.spec_tok_s and self.plain_tok_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A measurement beside its prediction."""

    row: Row
    family: str  # of the device
    kind: str  # of the model
    plain_tok_s: float
    gain: float | None  # at the measured length
    planned_length: int  # 0: no draft is planned

    @property
    def plain_error(self) -> float | None:
        """Return log(predicted / measured)."""
        return math.log(self.plain_tok_s / self.row.plain_tok_s) if self.row.plain_tok_s else None

    @property
    def gain_error(self) -> float | None:
        return math.log(self.gain / self.row.gain) if self.gain and self.row.gain else None

    @property
    def plans_a_loss(self) -> bool:
        return self.row.gain is not None and self.row.gain < 1 and self.planned_length > 0


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the lines of the file. Raises SystemExit if it is no such file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                fail(f"{path} has no column {', '.join(missing)}")
            for line in reader:
                yield make_row(line, reader.line_num, path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(f"{path} cannot be read: {error}")


def make_row(line: dict[str, str], number: int, path: Path) -> Row:
    try:
        return Row(
            line=number,
            machine=line["machine id"] or "",
            model=line["model"] or "",
            quant=line["quant"] or "",
            engine=line["engine"] or "",
            draft=line["draft"] or NONE,
            length=int(line["length"]) if (line["length"] or "").isdigit() else None,
            plain_tok_s=read_speed(line["plain_tok_s"]),
            spec_tok_s=read_speed(line["spec_tok_s"]),
        )
    except (TypeError, ValueError) as error:
        return fail(f"{path}, line {number}: {error}")


def read_speed(text: str | None) -> float | None:
    """Return the tokens a second; None for an empty field. Raises ValueError on what is no positive number."""
    if not text:
        return None
    speed = float(text)
    if not 0 < speed < math.inf:
        raise ValueError(f"not a speed: {text}")
    return speed


def fail(message: str) -> Row:
    sys.stderr.write(message + "\n")
    raise SystemExit(2)


# ---- predictions
def predict_gain(curve: Curve, draft: DraftOption, num_drafted: int) -> float:
    """Return the gain of drafts of this length, or of the draft model's longest; 1.0 if nothing is known of it."""
    if draft.acceptance is None:
        return 1.0
    num_drafted = min(num_drafted, curve.max_depth)
    return draft.acceptance.tokens(num_drafted) / curve.drafted_s(num_drafted) * curve.plain_s()


class Predictor:
    """Predicts what was measured, for machines and models of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def predict(self, row: Row) -> Result:
        """Return the prediction. Raises RowError."""
        empty = [name for name in ("machine", "model", "quant") if not getattr(row, name)]
        if empty:
            raise RowError(f"{' and '.join(empty)} missing")
        machine = self._find_machine(row)
        option = self._find_option(row)
        draft = find_draft(row, option)
        evaluator = CandidateEvaluator(machine, RunOptions(), num_cells=row.num_cells)
        planned = evaluator.predict(option, draft, offload := find_offload(row))
        gain = None
        if draft.shape is not None:
            length = row.length or planned.num_draft_tokens
            gain = predict_gain(evaluator.make_curve(option, draft, offload), draft, length) if length else None
        return Result(
            row=row,
            family=name_family(machine, row.machine),
            kind=name_kind(option),
            plain_tok_s=planned.plain_tok_s,
            gain=gain,
            planned_length=planned.num_draft_tokens,
        )

    def _find_machine(self, row: Row) -> MachineSpec:
        try:
            return make_known_spec(self._catalog.machine(row.machine))
        except EagleLocalError as error:
            raise RowError(error.message) from None

    def _find_option(self, row: Row) -> ModelOption:
        target = self._catalog.targets.get(row.model)
        if target is None:
            raise RowError(f"the catalog has no model {row.model}")
        options = list(make_catalog_options(target, self._catalog, quant=row.quant))
        if not options:
            raise RowError(f"the catalog has no {row.model} in {row.quant}")
        return options[0]


def find_draft(row: Row, option: ModelOption) -> DraftOption:
    """Return the draft of the measurement. Raises RowError if the catalog knows none."""
    if row.draft == NONE:
        return NO_DRAFT_OPTION
    found = next((draft for draft in option.drafts if row.draft in (draft.kind, draft.id)), None)
    if found is None:
        raise RowError(f"the catalog knows no draft {row.draft} of {row.model}")
    return found


def find_offload(row: Row) -> Offload:
    found = OFFLOAD.search(row.engine)
    return Offload(int(found[1]), int(found[2])) if found else WHOLE


def name_family(machine: MachineSpec, name: str) -> str:
    """Return the family of devices that a measurement counts for."""
    number = re.search(r"(?:rtx|gtx)-(\d)\d{3}", name)
    if not machine.gpus:
        return "processor"
    if name.startswith(("m1", "m2", "m3", "m4", "m5")):
        return "Apple"
    if name.startswith(("rx-", "ai-pro")):
        return "AMD cards"
    if name.startswith(("strix", "dgx")):
        return "shared memory"
    if number:
        return {"3": "Ampere", "4": "Ada", "5": "Blackwell"}.get(number[1], "other NVIDIA")
    return {"a4000": "Ampere", "a100-80gb": "Ampere", "rtx-pro-6000": "Blackwell", "rtx-6000-ada": "Ada"}.get(
        name, "other NVIDIA"
    )


def name_kind(option: ModelOption) -> str:
    shape = option.shape
    recurrent = "hybrid " if shape.has_state else ""
    return f"{recurrent}MoE" if shape.n_expert else f"{recurrent}dense"


# ---- the report
def describe_error(errors: Sequence[float]) -> str:
    """Return median and 90 % of the errors, and the median's direction, as shares."""
    sizes = sorted(math.expm1(abs(error)) for error in errors)
    bias = math.exp(statistics.median(errors))
    return f"{len(sizes):4}  {statistics.median(sizes):6.1%}  {sizes[int(0.9 * (len(sizes) - 1))]:6.1%}  {bias:5.2f}"


def median_error(errors: Sequence[float]) -> float:
    return statistics.median(math.expm1(abs(error)) for error in errors)


def report(results: Sequence[Result]) -> bool:
    """Print the tables; return whether every bound is kept."""
    is_kept = True
    for title, bound, pick in (
        ("plain speed", PLAIN_BOUND, lambda result: result.plain_error),
        ("gain of drafts", GAIN_BOUND, lambda result: result.gain_error),
    ):
        groups: dict[str, list[float]] = defaultdict(list)
        for result in results:
            if (error := pick(result)) is not None:
                for name in ("all", result.family, result.kind):
                    groups[name].append(error)
        sys.stdout.write(f"{title:20} rows  median     90 %  predicted / measured\n")
        for name, errors in groups.items():
            limit = bound if name == "all" else FAMILY_BOUND
            is_judged = name == "all" or len(errors) >= LEAST_OF_FAMILY
            is_over = is_judged and median_error(errors) > limit
            is_kept &= not is_over
            sys.stdout.write(f"{name:20} {describe_error(errors)}{f'  over {limit:.0%}' if is_over else ''}\n")
        sys.stdout.write("\n")
    for result in results:
        if result.plans_a_loss:
            is_kept = False
            sys.stdout.write(f"{describe_row(result.row)}: {result.planned_length} planned, {result.row.gain:.2f}x\n")
    return is_kept


def describe_row(row: Row) -> str:
    return f"line {row.line}, {row.machine}, {row.model}:{row.quant}"


def show_rows(results: Sequence[Result]) -> None:
    for result in sorted(results, key=lambda result: (result.family, result.plain_error or 0.0)):
        row = result.row
        plain = f"{result.plain_tok_s:7.1f} {row.plain_tok_s or math.nan:7.1f}"
        ratio = math.exp(result.plain_error) if result.plain_error is not None else math.nan
        gain = f"  gain {result.gain:.2f} {row.gain:.2f} at {row.length}" if result.gain and row.gain else ""
        what = f"{row.machine:20} {row.model:24} {row.quant:8} {row.num_cells:6}"
        sys.stdout.write(f"{result.family:14} {what} {plain} {ratio:5.2f}{gain}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="plan beside published speeds")
    parser.add_argument("csv", type=Path)
    parser.add_argument("--rows", action="store_true")
    given = parser.parse_args()
    predictor = Predictor(load_catalog())
    results: list[Result] = []
    for row in read_rows(given.csv):
        try:
            results.append(predictor.predict(row))
        except RowError as error:
            sys.stderr.write(f"{describe_row(row)}: {error}\n")
    if not results:
        fail(f"{given.csv} has no line that can be planned")
    if given.rows:
        show_rows(results)
    raise SystemExit(not report(results))


if __name__ == "__main__":
    main()
