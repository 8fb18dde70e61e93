"""Reads published speeds for public_speeds.py, and makes a case of each that the planner can predict."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from eaglelocal.catalog.catalog import CPU, CUDA, METAL, VULKAN, Catalog, KnownMachine
from eaglelocal.core.run_options import NONE, TENSOR, RunOptions
from eaglelocal.errors import EagleLocalError
from eaglelocal.memory.placement import WHOLE, Offload
from eaglelocal.planning.candidate_evaluation import CandidateEvaluator
from eaglelocal.planning.machine_spec import DeviceSpec, make_known_spec
from eaglelocal.planning.options import NO_DRAFT_OPTION, DraftOption, ModelOption, make_catalog_options
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.planning.speed import OLDER_CUDA, Curve, draft_step_s, expect_cells, name_kernels

COLUMNS = ("machine id", "model", "quant", "engine", "ctx", "draft", "length", "plain_tok_s", "spec_tok_s")
UNIFIED = "unified memory"  # GPUs in main memory, except Apple's
CLASSES = {CUDA: "NVIDIA, recent", OLDER_CUDA: "NVIDIA, older", VULKAN: "AMD", METAL: "Apple", CPU: "CPU"}
DEPTH = re.compile(r"depth=(\d+)")
OFFLOAD = re.compile(r"gpu_layers=(\d+) n_cpu_moe=(\d+)")
LAYERS_ON_CARD = re.compile(r"\[(\d+) of \d+ layers on the card\]")
SEVERAL = re.compile(r"(\d+)x-(.+)")
FILE = re.compile(r"file(?: measured)?: (?:UD-)?(\w+)")  # the file that was measured, in a source
SPLIT = re.compile(r"\b(sm|split) tensor\b")
ENGINES = ("", "llama.cpp", "docker model runner")  # the last runs llama.cpp
ODDITIES = (
    (r"footnote not read", "a footnote was not read"),
    (r"machine not read", "the machine was not read"),
    (r"\[old2024\]", "llama.cpp of 2024"),
    (r"\[dayone\]", "llama.cpp of the model's first day"),
    (r"\b\d+ ?W\b|Max-Q", "a power limit"),
    (r"\[OC", "overclocked"),
    (r"\[unpaired\]", "plain and drafted runs are not a pair"),
    (r"plain not measured", "a text of one kind only"),
    (r"bug-tracker", "a report of a fault"),
    (r"PR \d+ build", "the build of a pull request"),
    (r"\(file: \w+ ", "a publisher's own quantization"),
)


class RowError(Exception):
    """A line that cannot be planned, and why."""


class OddRowError(RowError):
    """A line that is left out, because other people cannot repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published measurement."""

    place: str  # its file and line
    machine: str
    model: str
    quant: str
    engine: str
    source: str
    ctx: int | None
    draft: str
    length: int | None
    plain_tok_s: float | None
    spec_tok_s: float | None

    @property
    def num_cells(self) -> int:
        """Return the cells in the cache: those that it names, else as many as `plan --ctx` expects."""
        depth = DEPTH.search(self.engine)
        return int(depth[1]) if depth and int(depth[1]) else expect_cells(self.ctx)

    @property
    def gain(self) -> float | None:
        return self.spec_tok_s / self.plain_tok_s if self.spec_tok_s and self.plain_tok_s else None

    @property
    def card(self) -> str:
        """Return the machine without the number of its cards and the size of its memory."""
        return re.sub(r"^\d+x-|-\d+gb$", "", self.machine)

    def __str__(self) -> str:
        return f"{self.place}, {self.machine}, {self.model}:{self.quant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement, with what predicts it."""

    row: Row
    class_name: str  # of its device
    kind: str  # of the model
    curve: Curve
    draft_device: DeviceSpec
    acceptance: PredictedAcceptance | None
    planned_length: int  # 0: no draft is planned

    def predict(self) -> tuple[float, float | None]:
        """Return the plain tokens/s, and those with drafts of the measured length, if they were measured."""
        curve, length = self.curve, self.row.length or self.planned_length
        plain = 1.0 / curve.plain_s()
        if curve.draft is None or self.acceptance is None or not self.row.spec_tok_s or not length:
            return plain, None
        curve = replace(curve, draft_s=draft_step_s(curve.draft, self.draft_device))
        length = min(length, curve.max_depth)
        return plain, self.acceptance.tokens(length) / curve.drafted_s(length)

    def list_errors(self) -> tuple[float | None, float | None]:
        """Return log(predicted / measured) of the plain and of the drafted speed; None where that is not measured."""
        plain, drafted = self.predict()
        plain_error = math.log(plain / self.row.plain_tok_s) if self.row.plain_tok_s else None
        return plain_error, math.log(drafted / self.row.spec_tok_s) if drafted and self.row.spec_tok_s else None

    @property
    def kernels(self) -> str:
        """Return the key of KERNELS that counts."""
        return name_kernels(self.draft_device)

    @property
    def plans_a_loss(self) -> bool:
        return self.row.gain is not None and self.row.gain < 1 and self.planned_length > 0


# ---- files
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
            place=f"{path.name} line {number}",
            machine=line["machine id"] or "",
            model=line["model"] or "",
            quant=line["quant"] or "",
            engine=line["engine"] or "",
            source=line.get("source") or "",
            ctx=int(line["ctx"]) if (line["ctx"] or "").isdigit() else None,
            draft=line["draft"] or NONE,
            length=int(line["length"]) if (line["length"] or "").isdigit() else None,
            plain_tok_s=read_speed(line["plain_tok_s"]),
            spec_tok_s=read_speed(line["spec_tok_s"]),
        )
    except (TypeError, ValueError) as error:
        fail(f"{path}, line {number}: {error}")


def read_speed(text: str | None) -> float | None:
    """Return the tokens a second; None for an empty field. Raises ValueError on what is no positive number."""
    if not text:
        return None
    speed = float(text)
    if not 0 < speed < math.inf:
        raise ValueError(f"not a speed: {text}")
    return speed


def fail(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise SystemExit(2)


# ---- cases
def make_case(row: Row, catalog: Catalog) -> Case:
    """Return the case of a measurement. Raises RowError."""
    check_row(row)
    known = find_machine(row.machine, catalog)
    option = find_option(row, catalog)
    draft = find_draft(row, option)
    offload = find_offload(row)
    options = RunOptions(split=TENSOR) if SPLIT.search(row.source) else RunOptions()
    evaluator = CandidateEvaluator(make_known_spec(known), options, num_cells=row.num_cells)
    device = (*evaluator.machine.gpus, evaluator.machine.host)[0]
    if device.kind == CUDA and "vulkan" in row.engine:
        raise OddRowError("Vulkan on an NVIDIA card")
    return Case(
        row=row,
        class_name=UNIFIED if device.shares_ram and device.kind != METAL else CLASSES[name_kernels(device)],
        kind=name_kind(option),
        curve=evaluator.make_curve(option, draft, offload),
        draft_device=device,
        acceptance=draft.acceptance,
        planned_length=evaluator.predict(option, draft, offload).num_draft_tokens,
    )


def check_row(row: Row) -> None:
    """Raises OddRowError on a measurement that says nothing about other people's, RowError on an incomplete one."""
    oddity = next((reason for pattern, reason in ODDITIES if re.search(pattern, row.source)), "")
    if not any(row.engine == engine or row.engine.startswith(f"{engine} ") for engine in ENGINES):
        oddity = "another engine"
    elif re.search(r"\b(fork|branch)\b", row.engine):
        oddity = "a fork of llama.cpp"
    if oddity:
        raise OddRowError(oddity)
    empty = [name for name in ("machine", "model", "quant") if not getattr(row, name)]
    if empty:
        raise RowError(f"{' and '.join(empty)} missing")


def find_machine(name: str, catalog: Catalog) -> KnownMachine:
    """Return the machine of the catalog, or one with several of its cards. Raises RowError."""
    several = SEVERAL.fullmatch(name)
    try:
        if several is not None and name not in catalog.machines:
            return replace(catalog.machine(several[2]), num_gpus=int(several[1]))
        return catalog.machine(name)
    except EagleLocalError as error:
        raise RowError(error.message) from None


def find_option(row: Row, catalog: Catalog) -> ModelOption:
    """Return the quantization of the measured file, if the catalog has that, else of the row. Raises RowError."""
    target = catalog.targets.get(row.model)
    if target is None:
        raise RowError(f"the catalog has no model {row.model}")
    file = FILE.search(row.source)
    for quant in ([file[1]] if file else []) + [row.quant]:
        for option in make_catalog_options(target, catalog, quant=quant):
            return option
    raise RowError(f"the catalog has no {row.model} in {row.quant}")


def find_draft(row: Row, option: ModelOption) -> DraftOption:
    """Return the draft of the measurement. Raises RowError if the catalog knows none."""
    if row.draft == NONE:
        return NO_DRAFT_OPTION
    found = next((draft for draft in option.drafts if row.draft in (draft.kind, draft.id)), None)
    if found is None:
        raise RowError(f"the catalog knows no draft {row.draft} of {row.model}")
    return found


def find_offload(row: Row) -> Offload:
    """Return the layers on cards, as the engine's column or the source names them. Raises RowError."""
    if (found := OFFLOAD.search(row.engine)) is not None:
        return Offload(int(found[1]), int(found[2]))
    if (layers := LAYERS_ON_CARD.search(row.source)) is not None:
        return Offload(int(layers[1]), 0)
    if row.engine.endswith(" offload"):
        raise RowError("the layers on the card are not named")
    return WHOLE


def name_kind(option: ModelOption) -> str:
    shape = option.shape
    recurrent = "hybrid " if shape.has_state else ""
    return f"{recurrent}MoE" if shape.n_expert else f"{recurrent}dense"
