"""The questions of card.py: each measures one thing until its time is over, and reports what it finds at once.

A question gets a Setup, the moment at which it must end, and a function that reports: a line for people, and the
figures behind it for JSON.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

from first_word import Contender, run_server
from host_time import host_ms
from shapes import IN_TURN, MAX_ROWS, MORE_CHANGES, SORTED, took
from trees import pair

from eaglelocal.backend.dry_run import BUFFER_LINE
from eaglelocal.backend.llama_library import free_memory, load_library
from eaglelocal.bench.bench_prompts import builtin_prompts, group_by_category
from eaglelocal.bench.measure import PLAIN, Measurement, TaskResult, order_prompts
from eaglelocal.bench.prompt_run import CacheClearer, Side
from eaglelocal.bench.results import Bound, CategoryResult, Summary, bound_mean, evaluate_categories, summarize
from eaglelocal.bench.text_identity import DifferenceVerdict, TextComparer, tie_bound
from eaglelocal.cli.bench_report import describe_machine
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.client.http_client import HttpClient
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.warmup import Warmup
from eaglelocal.errors import UsageError
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.engine_builder import build
from eaglelocal.loading.fit import COMPUTING_BYTES, fit_plan
from eaglelocal.memory.estimate import estimate
from eaglelocal.preparation.decision import resolve
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.probe.probe import probe

MIB = 2**20
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 17, 20, 24, 28, 32, 40, 48, 64)  # with logits
PROMPT_ROWS = (128, 256, 512)  # without
SLOTS = 4  # that have logits for all ROWS
CONTEXT = 2048
MAX_USUAL_ROWS = 17  # these are timed first
ANSWER_TOKENS, PROMPTS_PER_KIND = 64, 40
SERVER_SETTINGS = {"llama-server": (), "llama-server, head": ("--spec-type", "draft-eagle3")}


class Report(Protocol):
    def __call__(self, text: str, **figures: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured: references of a small model, of one in four bits and of a large one (none: left out).

    server  llama-server's binary
    """

    small: str
    quantized: str
    large: str
    server: str | None

    @property
    def references(self) -> list[str]:
        return [reference for reference in (self.small, self.quantized, self.large) if reference]


Question = Callable[[Setup, float, Report], None]


def is_over(ends_at: float, next_s: float = 0.0) -> bool:
    """Return whether a further piece of work, of so many seconds, would end too late."""
    return time.monotonic() + next_s >= ends_at


def plan_of(reference: str, **changes: object) -> Plan:
    """Return a plan with the context that all are measured with. `changes`: of the plan's fields."""
    plan = resolve(RunOptions(target=reference), on_progress=lambda share, what: None)
    return replace(plan, **{"n_ctx": CONTEXT, **changes})  # type: ignore[arg-type]


def show(bound: Bound) -> str:
    return f"{bound.mean:.3f} ({bound.low:.3f} to {bound.high:.3f})" if bound.is_known else f"{bound.mean:.3f}"


# ---- the machine and its files
def describe(setup: Setup, ends_at: float, report: Report) -> None:
    facts, library, machine = describe_machine(probe()), load_library(), probe()
    memory = free_memory(library, ram_bytes=machine.memory.available_bytes, unified=machine.lends_memory)
    report(
        f"{', '.join(facts.gpus) or 'no graphics card'}; {facts.cpu}; {facts.system}", gpus=facts.gpus, cpu=facts.cpu
    )
    report(f"llama.cpp {library.build}", build=library.build)
    for device in memory:
        free_mib = (device.free_bytes or 0) / MIB
        report(f"{device.device}: {free_mib:.0f} MiB free", device=device.device, free_mib=free_mib)


def write_files(setup: Setup, ends_at: float, report: Report) -> None:
    """Write the inflated models, so that no other question waits for them."""
    for reference in setup.references:
        started_at = time.monotonic()
        plan = plan_of(reference)
        seconds, size_mib = time.monotonic() - started_at, plan.target.stat().st_size / MIB
        report(f"{reference}: {size_mib:.0f} MiB, {seconds:.1f} s", reference=reference, mib=size_mib, seconds=seconds)


# ---- rows
@contextlib.contextmanager
def opened_engine(plan: Plan) -> Iterator[Engine]:
    engine = build(plan, lambda progress: None)
    try:
        yield engine
    finally:
        engine.close()


def measure_rows(reference: str) -> Question:
    def ask(setup: Setup, ends_at: float, report: Report) -> None:
        undrafted = {
            "draft_kind": "ngram",
            "draft": None,
            "num_slots": SLOTS,
            "unified": True,
            "n_ctx": max(PROMPT_ROWS),
        }  # has logits for all rows
        with opened_engine(plan_of(reference, **undrafted)) as engine:
            warming = Warmup(engine.context, (), max_outputs=max(ROWS))
            half = time.monotonic() + 0.6 * (ends_at - time.monotonic())
            time_sizes(reference, warming, half, report)
            time_changes(reference, warming, ends_at, report)

    return ask


def time_sizes(reference: str, warming: Warmup, ends_at: float, report: Report) -> None:
    """Report what the first decode of each size took, and the medians of those after it, timed in turn."""
    first_ms = time_first(warming, ends_at)
    seconds: dict[int, list[float]] = {rows: [] for rows in first_ms}
    round_s = sum(first_ms.values()) / 1000
    while not all(seconds.values()) or not is_over(ends_at, round_s):
        for rows in seconds:
            seconds[rows].append(warming.time_rows(rows))
        round_s = sum(each[-1] for each in seconds.values())
    ms = {rows: 1000 * statistics.median(each) for rows, each in seconds.items()}
    spread = statistics.median(max(each) / min(each) for each in seconds.values())
    report(
        f"{reference}, ms of a decode by rows: " + ", ".join(f"{rows}: {ms[rows]:.2f}" for rows in ms),
        ms=ms,
        rounds=len(seconds[1]),
        spread=spread,
    )
    report(f"{reference}, relative to one row: " + ", ".join(f"{rows}: {ms[rows] / ms[1]:.2f}" for rows in ms))
    worst = max(ms, key=lambda rows: first_ms[rows] - ms[rows])
    total_ms = sum(max(first_ms[rows] - ms[rows], 0.0) for rows in ms)
    report(
        f"{reference}, the first decode of a size: at most {first_ms[worst] - ms[worst]:.0f} ms longer "
        f"({worst} rows), {total_ms:.0f} ms for all sizes",
        first_ms=first_ms,
    )


def time_first(warming: Warmup, ends_at: float) -> dict[int, float]:
    """Return what the first decode of each size takes, in ms; of as many sizes as can be timed twice more."""
    first_ms: dict[int, float] = {}
    for rows in sorted([*ROWS, *PROMPT_ROWS], key=lambda rows: (rows > MAX_USUAL_ROWS, rows)):
        expected_ms = max((ms / timed * rows for timed, ms in first_ms.items()), default=0.0)
        if not is_over(ends_at, 2 * (sum(first_ms.values()) + expected_ms) / 1000):
            first_ms[rows] = 1000 * warming.time_rows(rows)
    return dict(sorted(first_ms.items()))


def time_changes(reference: str, warming: Warmup, ends_at: float, report: Report) -> None:
    """Report the price of changing the number of rows: decodes of 3 and 5 rows, sorted and in turn."""
    ratios, sorted_s, seconds = [], [], 0.0
    while not ratios or not is_over(ends_at, seconds):
        blocks = [SORTED, IN_TURN] if len(ratios) % 2 == 0 else [IN_TURN, SORTED]
        found = {id(block): took(warming, block) for block in blocks}
        ratios.append(found[id(IN_TURN)] / found[id(SORTED)])
        sorted_s.append(found[id(SORTED)])
        seconds = sum(found.values())
    bound, step_s = bound_mean([ratios]), statistics.median(sorted_s) / len(SORTED)
    change = (bound.mean - 1.0) * len(SORTED) / MORE_CHANGES
    report(
        f"{reference}, decodes of {SORTED[0]} and {MAX_ROWS} rows in turn / sorted {show(bound)}: a change of rows "
        f"costs {100 * change:.2f} % of a step of {1000 * step_s:.2f} ms, {1e6 * change * step_s:.0f} µs",
        ratio=bound.mean,
        low=bound.low,
        high=bound.high,
        change_us=1e6 * change * step_s,
        pairs=len(ratios),
    )


# ---- host time
def measure_host_time(setup: Setup, ends_at: float, report: Report) -> None:
    """Report the time of a step outside llama.cpp: on a card, the time for which it waits."""
    cases = [(num_slots, spec) for spec in (AUTO_SPEC, fixed_spec(4), OFF) for num_slots in (1, 8)]
    for num_slots, spec in cases:
        if is_over(ends_at):
            return
        with EngineClient(plan_of(setup.small, num_slots=num_slots, spec=spec, unified=None)) as client:
            client.start()
            before = client.snapshot()
            ms = host_ms(client, num_slots, num_tokens=100)
            after = client.snapshot()
        native_ms = 1000 * (after.native_s - before.native_s) / (after.steps - before.steps)
        report(
            f"{setup.small}, {num_slots} slots, spec {spec}: {ms:.2f} ms of a step outside llama.cpp, "
            f"{native_ms:.2f} ms inside ({ms / (ms + native_ms):.1%})",
            slots=num_slots,
            spec=str(spec),
            host_ms=ms,
            native_ms=native_ms,
        )


# ---- caches and trees
def measure_caches(setup: Setup, ends_at: float, report: Report) -> None:
    """Report one cache for all slots against one for each: with drafts (trees against chains), and without."""
    cases = [(num_slots, spec) for num_slots in (1, 2, 4) for spec in (AUTO_SPEC, OFF) if (num_slots, spec) != (1, OFF)]
    start_s = 0.0
    for number, (num_slots, spec) in enumerate(cases):
        if is_over(ends_at, 2 * start_s):
            return
        started_at = time.monotonic()
        case_ends_at = started_at + (ends_at - started_at) / (len(cases) - number)
        one, several = (EngineClient(plan_of(setup.small, num_slots=num_slots, unified=each)) for each in (True, False))
        with one, several:
            one.start()
            several.start()
            start_s = time.monotonic() - started_at
            ratios = list(compare_caches(one, several, num_slots, str(spec), case_ends_at))
        bound = bound_mean([ratios])
        what = "with trees / one for each slot, with chains" if spec == AUTO_SPEC else "/ one for each slot, no drafts"
        report(
            f"{setup.small}, {num_slots} at once, one cache {what}: {show(bound)}",
            slots=num_slots,
            spec=str(spec),
            ratio=bound.mean,
            low=bound.low,
            high=bound.high,
            pairs=len(ratios),
        )


def compare_caches(
    one: EngineClient, several: EngineClient, num_slots: int, spec: str, ends_at: float
) -> Iterator[float]:
    """Yield ratios of speed, one / several, until the time is over; one in any case."""
    prompts, pair_s = builtin_prompts([], num_slots * PROMPTS_PER_KIND), 0.0
    kinds = list(group_by_category(prompts).values())
    mixed = [prompt for same in zip(*kinds, strict=False) for prompt in same]
    for number in range(len(mixed) // num_slots):
        if number and is_over(ends_at, pair_s):
            return
        started_at = time.monotonic()
        waiting = mixed[number * num_slots : (number + 1) * num_slots]
        ratio = pair(one, several, waiting, AUTO_SPEC if spec == str(AUTO_SPEC) else OFF, f"{spec} {number}")
        pair_s = time.monotonic() - started_at
        if ratio:
            yield ratio


# ---- memory
def measure_memory(setup: Setup, ends_at: float, report: Report) -> None:
    """Report predicted buffers beside those of llama.cpp, and what a card holds beyond them while it computes."""
    library, machine = load_library(), probe()
    plan = plan_of(setup.small, num_slots=SLOTS)

    def free() -> dict[str, int]:
        found = free_memory(library, ram_bytes=machine.memory.available_bytes, unified=machine.lends_memory)
        return {device.device: device.free_bytes or 0 for device in found[1:]}

    before = free()  # it has made the contexts of the drivers
    devices = free_memory(library, ram_bytes=machine.memory.available_bytes, unified=machine.lends_memory)
    fitted = fit_plan(plan, machine, library, threads=count_usable_threads())
    for buffer in estimate(fitted.plan, fitted.shape, fitted.draft_shape, devices):
        of_draft = " of the draft" if buffer.of_draft else ""
        text = f"predicted: {buffer.kind.value}{of_draft} on {buffer.device} {buffer.num_bytes / MIB:.1f} MiB"
        report(text, device=buffer.device, kind=buffer.kind.value, mib=buffer.num_bytes / MIB)
    num_lines = len(library.log.buffer_lines)
    with opened_engine(plan) as engine:
        for match in filter(None, map(BUFFER_LINE.match, library.log.buffer_lines[num_lines:])):
            report(
                f"llama.cpp: {match[2]} on {match[1]} {match[3]} MiB",
                device=match[1],
                kind=match[2],
                mib=float(match[3]),
            )
        loaded = free()
        run_full(engine, ends_at)
        computing = free()
    for device, free_bytes in before.items():
        load_mib, compute_mib = (free_bytes - loaded[device]) / MIB, (loaded[device] - computing[device]) / MIB
        report(
            f"{device}: {load_mib:.0f} MiB taken by loading, {compute_mib:.0f} MiB more by computing "
            f"({COMPUTING_BYTES / MIB:.0f} are kept free)",
            device=device,
            load_mib=load_mib,
            compute_mib=compute_mib,
        )


def run_full(engine: Engine, ends_at: float) -> None:
    """Run prompts of full batches in all slots, and drafted answers after them, as far as there is time."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=40)
    for slot in range(SLOTS):
        tokens = tuple(20 + (7 * slot + i) % 200 for i in range(CONTEXT // 2))
        engine.submit(ChatRequest(id=str(slot), tokens=tokens, params=params))
    while engine.has_work and not is_over(ends_at):
        engine.step()


# ---- work
def measure_work(reference: str) -> Question:
    """Return the question of speed by kind of work, beside llama-server if its binary is given."""

    def ask(setup: Setup, ends_at: float, report: Report) -> None:
        plan = plan_of(reference)
        with contextlib.ExitStack() as running:
            client = running.enter_context(EngineClient(plan))
            info = client.start()
            clear = CacheClearer(client, num_slots=info.num_slots, n_vocab=info.n_vocab).clear_cache
            specs = {PLAIN: OFF, "auto": AUTO_SPEC, "4": fixed_spec(4)}
            sides = [Side(label, client, spec, clear) for label, spec in specs.items()]
            sides += start_servers(setup, plan, running, report)
            results = run_sides(sides, plan, ends_at)
        report_work(reference, results, [side.label for side in sides[1:]], report)

    return ask


def start_servers(setup: Setup, plan: Plan, running: contextlib.ExitStack, report: Report) -> Iterator[Side]:
    """Yield llama-server as it is started plainly, and with the head."""
    for name, settings in SERVER_SETTINGS.items() if setup.server else ():
        command = [
            str(setup.server),
            "-m",
            str(plan.target),
            "-np",
            "1",
            "-c",
            str(CONTEXT),
            "-ngl",
            "999",
            "--no-webui",
        ]
        if settings:
            command += ["-md", str(plan.draft), *settings]
        try:
            server = running.enter_context(run_server(Contender(name, tuple(command), False)))
        except SystemExit as problem:
            report(str(problem).splitlines()[0])
            continue
        client = running.enter_context(HttpClient(server.url))
        client.start()
        yield Side(name, client)


def run_sides(sides: Sequence[Side], plan: Plan, ends_at: float) -> list[TaskResult]:
    prompts = group_by_category(builtin_prompts([], PROMPTS_PER_KIND + 1))
    warm_up = [group[-1] for group in prompts.values()][:2]
    groups = order_prompts({kind: group[:-1] for kind, group in prompts.items()}, (1,), repeats=1, warm_up=warm_up)
    comparer = TextComparer(sides[0], bound=tie_bound(read_header(plan.target).main_type, plan.kv_type))
    params = replace(GREEDY, max_tokens=ANSWER_TOKENS)
    results: list[TaskResult] = []
    Measurement(sides, params, comparer=comparer, on_ask=lambda group, done: None).run(
        groups, results, is_needed=lambda group: not (group.is_counted and is_over(ends_at))
    )
    return results


def report_work(reference: str, results: Sequence[TaskResult], sides: Sequence[str], report: Report) -> None:
    found = evaluate_categories(results, sides)
    for summary in summarize(results, found, sides):
        report_speed(reference, "all kinds", summary, report)
    for each in found:
        if each.speedup is not None:
            report_speed(reference, each.category, each, report)
    differences = [difference for result in results for difference in result.differences]
    num_wrong = sum(each.verdict is DifferenceVerdict.DIFFERENT for each in differences)
    report(
        f"{reference}: {len(results)} prompts, {len(differences)} drafted texts differ, {num_wrong} of them "
        "not at near-ties",
        prompts=len(results),
        differences=len(differences),
        wrong=num_wrong,
    )


def report_speed(reference: str, kind: str, found: CategoryResult | Summary, report: Report) -> None:
    bound = found.speedup
    assert bound is not None
    figures = {"side": found.side, "kind": kind, "ratio": bound.mean, "low": bound.low, "high": bound.high}
    rest = f", {found.num_pairs} pairs"
    if isinstance(found, CategoryResult):
        figures |= {
            "plain_tok_s": found.plain_tok_s,
            "tok_s": found.tok_s,
            "acceptance_length": found.acceptance_length,
        }
        rest = (
            f", {found.plain_tok_s:.1f} -> {found.tok_s:.1f} tokens/s, acceptance length {found.acceptance_length:.2f}"
        )
    report(f"{reference}, {kind}, {found.side} / plain: {show(bound)}{rest}", **figures)


def usable_reference(wanted: str, otherwise: str) -> str:
    """Return the wanted reference, or the other one if this version cannot write such a model."""
    from eaglelocal.hub.inflation.inflate import parse_demo_reference

    try:
        parse_demo_reference(wanted)
    except UsageError:
        return otherwise
    return wanted
