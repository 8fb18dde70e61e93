"""`eaglelocal bench`: measure the speed-up of speculation on this machine, in alternating pairs on one engine.

From flags to a measurement and its report; eaglelocal/bench decides the order of requests and evaluates them.
A run that is stopped or fails reports the results so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.bench_report import (
    DEFAULT_PAIRS,
    SERVER_SIDE,
    BenchOptions,
    BenchResult,
    BenchSubject,
    check_files,
    predict_unmeasured,
    show_rates,
    show_result,
)
from eaglelocal.cli.chat_connection import find_api_key
from eaglelocal.cli.flags import flag
from eaglelocal.cli.load_model import count_slots, is_flag, load_model, load_settings, make_run_options, plan_run
from eaglelocal.cli.output import Output, ShowProgress, shown_progress, standard_output
from eaglelocal.core.draft import describe_cut_length
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import OFF
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.core.terminal_text import FaultInLine, format_place, read_text_file
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import Cancelled, EagleLocalError, UsageError

if TYPE_CHECKING:
    from eaglelocal.bench.bench_prompts import BenchPrompt
    from eaglelocal.bench.measure import IsNeeded, OnAsk, PromptGroup, TaskResult
    from eaglelocal.bench.prompt_run import Side
    from eaglelocal.bench.text_identity import TextComparer
    from eaglelocal.client.http_client import HttpClient
    from eaglelocal.conversation.session import ActiveModel
    from eaglelocal.core.plan import Plan
    from eaglelocal.settings import Settings

FEWEST_PROMPTS = 2  # of each category, however long they take: a single one has no interval
LIMIT_S = 100.0  # for each mode, loading excluded; only if no flag sets the length of the run
RATE_PROMPTS = 64  # of each category, with --rate
RATE_SLOTS = 4  # with --rate, as `serve` has
MIN_ANSWER = 16  # tokens: the speed of shorter answers is too uncertain
# The flags that are settings; --spec, --temperature, --max-tokens and --seed are bench's own.
SETTINGS = (*flags.MODEL, *flags.MACHINE, "parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """The flags that only `bench` has, or with another meaning than elsewhere."""

    spec: str | None = flag(None, "MODES", "Modes to measure: auto, pid and draft lengths, such as auto,2,4,8.")
    category: str = flag("", "NAME,...", "Categories of prompts, such as chat,math; unset: all.")
    prompts: Path | None = flag(
        None, "FILE", "File of your own prompts, one a line, as text or JSON.", parser=expand_path
    )
    pairs: int | None = flag(
        None, "N", "Prompts of each category; unset: as many as two minutes hold, or all of --prompts.", min=1
    )
    repeats: int = flag(1, "N", "How often each prompt is sent.", min=1)
    warm_up: int = flag(2, "N", "Answers of each mode before the measurement.", min=0)
    concurrency: str = flag("1", "N,...", "Requests at the same time, such as 1,2,4,8.")
    rate: str | None = flag(
        None, "R,...", "Requests per second that arrive at random times, such as 0.5,1,2,4: the gain under load."
    )
    max_tokens: int = flag(64, "N", "Tokens of each answer.", min=MIN_ANSWER)
    skip: int = flag(0, "N", "Leave the first N tokens of each answer out of its speed.", min=0)
    ignore_eos: bool = flag(False, "", "Continue every answer to --max-tokens.")
    temperature: float = flag(0.0, "T", "Sampling temperature; 0 always takes the likeliest token.")
    seed: int = flag(0, "N", "Seed of the answers, if --temperature is above 0, and of the arrivals of --rate.", min=0)
    against: str | None = flag(None, "URL", "Compare with this OpenAI-compatible server too.")
    against_model: str | None = flag(None, "NAME", "Model of that server; unset: its first.")
    against_key_file: Path | None = flag(None, "FILE", "File with the key of that server.", parser=expand_path)
    parallel: str | None = flag(None, "N", "Slots; unset: the largest --concurrency, or 4 with --rate.")
    svg: Path | None = flag(None, "FILE", "Write a chart to this SVG file.", parser=expand_path)
    report: Path | None = flag(
        None,
        "FILE",
        "Write a page to post: machine, model, predicted and measured (and FILE's .json).",
        parser=expand_path,
    )
    as_json: bool = flag(False, "", "Print one JSON object as the last line.", "--json")


@flags.takes(*SETTINGS, before="report")
def bench(context: typer.Context, given: BenchFlags) -> None:
    """Compare the speed of speculative and plain decoding.

    Both answer the same prompts in turn on one engine, and so does another server (--against). Every figure is a
    ratio with its interval.

    \b
    eaglelocal bench --target demo@1b:bf16 --spec auto,2,4,8 --pairs 20 --json
    eaglelocal bench --prompts mine.jsonl --concurrency 1,4 --svg gain.svg
    eaglelocal bench --target demo --rate 0.5,1,2 --spec auto,4
    """
    settings = load_settings({name: context.params[name] for name in SETTINGS})
    output = standard_output(colour=settings.colour)
    options = make_options(settings, given)
    chosen = choose_prompts(given)
    check_files(given.svg, given.report)
    settings = drop_unused_projector(settings, chosen)
    subject, result = run(settings, options, chosen, given, output)
    if given.report is not None:
        subject = dataclasses.replace(subject, predicted=predict_unmeasured(make_run_options(settings)))
    show = show_rates if options.rates else show_result
    show(result, subject, output, as_json=given.as_json, svg=given.svg, page=given.report)
    if result.error is not None:
        raise result.error


def run(
    settings: Settings, options: BenchOptions, chosen: ChosenPrompts, given: BenchFlags, output: Output
) -> tuple[BenchSubject, BenchResult]:
    """Load the model, measure, and close it. Returns the run's description and its result."""
    from eaglelocal.bench.measure import order_prompts
    from eaglelocal.bench.text_identity import TextComparer, tie_bound
    from eaglelocal.gguf.reader import read_header

    with contextlib.ExitStack() as opened:
        server = open_server(given, opened)
        server_info = server.start() if server is not None else None  # fails before a model is loaded
        plan = plan_bench(settings, options, output)
        weights = read_header(plan.target).main_type
        model = load_model(plan, output)
        opened.callback(model.client.close)
        for spec in options.modes:
            if cut := describe_cut_length(spec.num_draft_tokens, model.info.max_draft):
                output.message(f"--spec {spec}: {cut}")
        sides = make_sides(model, options, server)
        bound = tie_bound(weights, plan.kv_type)
        if options.rates:
            result = measure_rates(sides, chosen, options, given, num_slots=model.info.num_slots, output=output)
        else:
            groups = order_prompts(chosen.prompts, options.levels, repeats=given.repeats, warm_up=chosen.warm_up)
            result = measure(sides, groups, options, comparer=TextComparer(sides[0], bound=bound), output=output)
    return BenchSubject(model.info, options, server_info, weights, bound, plan.kv_type), result


@dataclass(frozen=True, slots=True)
class ChosenPrompts:
    """The prompts to measure, by category, and the warm-up prompts."""

    prompts: dict[str, list[BenchPrompt]]
    warm_up: list[BenchPrompt]

    @property
    def has_images(self) -> bool:
        prompts = [*self.warm_up, *(prompt for group in self.prompts.values() for prompt in group)]
        return any(prompt.has_images for prompt in prompts)


# ---- before the measurement
def make_options(settings: Settings, given: BenchFlags) -> BenchOptions:
    """Check the flags and return the run's options. Without --spec the mode is that of the settings (off: auto).

    Raises UsageError, also if --skip leaves fewer than MIN_ANSWER tokens.
    """
    from eaglelocal.bench.arrivals import parse_rates
    from eaglelocal.bench.measure import parse_levels, parse_modes

    rates = parse_rates(given.rate) if given.rate is not None else ()
    others = {"concurrency": given.concurrency != "1", "against": given.against, "skip": given.skip}
    if rates and (excluded := [name for name, value in others.items() if value]):
        raise UsageError(f"--rate and --{excluded[0]} exclude each other", hint=f"leave out --{excluded[0]}")
    params = make_sampling(settings, given)
    if given.skip and given.max_tokens - given.skip < MIN_ANSWER:
        what = f"--skip {given.skip} of --max-tokens {given.max_tokens} leaves too little to measure"
        raise UsageError(what, hint=f"--max-tokens {given.skip + 4 * MIN_ANSWER}")
    sets_length = given.pairs is not None or given.prompts is not None or given.repeats != 1
    default_mode = "auto" if settings.spec == "off" else str(settings.spec)
    return BenchOptions(
        modes=parse_modes(given.spec or default_mode),
        levels=parse_levels(given.concurrency),
        params=params,
        limit_s=math.inf if sets_length else LIMIT_S,
        skip=given.skip,
        rates=rates,
    )


def drop_unused_projector(settings: Settings, chosen: ChosenPrompts) -> Settings:
    """Return settings that load no projector found beside the model (mmproj auto) if no prompt has images."""
    if settings.mmproj != "auto" or chosen.has_images:
        return settings
    return dataclasses.replace(settings, mmproj="none")


def make_sampling(settings: Settings, given: BenchFlags) -> SamplingParams:
    """Return greedy sampling unless --temperature is given; the settings' temperature is for chats only."""
    if given.temperature == 0:
        return dataclasses.replace(GREEDY, max_tokens=given.max_tokens, ignore_eos=given.ignore_eos)
    return SamplingParams(
        temperature=given.temperature,
        seed=given.seed,
        max_tokens=given.max_tokens,
        ignore_eos=given.ignore_eos,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
    )


def choose_prompts(given: BenchFlags) -> ChosenPrompts:
    """Return the prompts of the file, or held-out tasks of the embedded model's corpus.

    The warm-up uses the first prompts of a file, but other tasks of the corpus than those measured.
    """
    from eaglelocal.bench.bench_prompts import builtin_prompts, group_by_category, read_prompts

    categories = [part.strip() for part in given.category.split(",") if part.strip()]
    if given.prompts is not None:
        prompts = read_prompts(given.prompts, categories)
        return ChosenPrompts(group_by_category(prompts, given.pairs), prompts[: given.warm_up])
    num = given.pairs or (RATE_PROMPTS if given.rate else DEFAULT_PAIRS)
    groups = group_by_category(builtin_prompts(categories, num + given.warm_up))
    warm_up = [group[num + i] for i in range(given.warm_up) for group in groups.values()]
    return ChosenPrompts({category: group[:num] for category, group in groups.items()}, warm_up[: given.warm_up])


def open_server(given: BenchFlags, opened: contextlib.ExitStack) -> HttpClient | None:
    if given.against is None:
        if given.against_model:
            raise UsageError(f"--against-model {given.against_model} needs a server", hint="--against URL")
        return None
    from eaglelocal.client.http_client import HttpClient

    key = read_key(given.against_key_file) or find_api_key(given.against)
    return opened.enter_context(HttpClient(given.against, api_key=key, model=given.against_model or ""))


def read_key(file: Path | None) -> str:
    """Return the first key of a file, `KEY` or `name: KEY` as `serve` writes it; "" without a file.

    Raises UsageError if the file cannot be read or holds no key.
    """
    if file is None:
        return ""
    try:
        lines = read_text_file(file).splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the key in {file}: {error.strerror}") from error
    except FaultInLine as error:
        raise UsageError(f"cannot read the key in {format_place(file, error)}: {error}") from error
    keys = [line.rpartition(": ")[2].strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys or not keys[0].isascii() or len(keys[0].split()) != 1:
        raise UsageError(f"there is no key in {file}", hint="a line `KEY`, or `name: KEY`")
    return keys[0]


def plan_bench(settings: Settings, options: BenchOptions, output: Output) -> Plan:
    """Return a plan with `spec` auto, under which each request may choose its mode, and with enough slots.

    Raises UsageError if there is no draft.
    """
    unset = RATE_SLOTS if options.rates and not is_flag(settings, "parallel") else 1
    slots = max(*options.levels, count_slots(settings), unset)
    plan = plan_run(dataclasses.replace(make_run_options(settings), spec="auto", parallel=slots), output)
    if not plan.speculates:
        raise UsageError(f"there is nothing to compare: {plan.draft_reason}", hint="--draft auto")
    return plan


def make_sides(model: ActiveModel, options: BenchOptions, server: HttpClient | None) -> list[Side]:
    """Return the sides to compare: plain decoding first, then the modes, then the server if there is one."""
    from eaglelocal.bench.measure import PLAIN
    from eaglelocal.bench.prompt_run import CacheClearer, Side
    from eaglelocal.client.engine_client import EngineClient

    client, info = model.client, model.info
    assert isinstance(client, EngineClient)
    clearer = CacheClearer(client, num_slots=info.num_slots, n_vocab=info.n_vocab)
    modes = [(PLAIN, OFF), *((str(spec), spec) for spec in options.modes)]
    ours = [Side(name, client, spec, clearer.clear_cache) for name, spec in modes]
    return ours if server is None else [*ours, Side(SERVER_SIDE, server)]


# ---- the measurement
def measure(
    sides: Sequence[Side],
    groups: Sequence[PromptGroup],
    options: BenchOptions,
    *,
    comparer: TextComparer,
    output: Output,
) -> BenchResult:
    """Run the groups. Ctrl-C and failures end the run early and are kept in the result, with the results so far."""
    from eaglelocal.bench.measure import Measurement

    results: list[TaskResult] = []
    with shown_progress(output) as show:
        on_ask = show_progress(show, has_bar=output.redraws_messages)
        measurement = Measurement(sides, options.params, comparer=comparer, on_ask=on_ask, skip=options.skip)
        is_needed = limit_time(options.limit_s * (len(sides) - 1))
        error = find_error(lambda: measurement.run(groups, results, is_needed=is_needed))
    if measurement.too_long and not results and error is None:
        error = measurement.too_long[0]
    return BenchResult(results, sum(group.is_counted for group in groups), error, measurement.too_long)


def measure_rates(
    sides: Sequence[Side],
    chosen: ChosenPrompts,
    options: BenchOptions,
    given: BenchFlags,
    *,
    num_slots: int,
    output: Output,
) -> BenchResult:
    """Run the windows of all rates. The result keeps what ends the run early, as in `measure`.

    With --pairs or --prompts every window has each prompt once.
    """
    from eaglelocal.bench.arrivals import ROUNDS, ArrivalPlan, LoadWindow, plan_arrivals, run_plans

    sets_length = given.pairs is not None or given.prompts is not None
    num_requests = sum(map(len, chosen.prompts.values())) if sets_length else None
    rounds = ROUNDS * given.repeats
    plans = plan_arrivals(chosen.prompts, options.rates, rounds=rounds, num_requests=num_requests, seed=given.seed)
    windows: list[LoadWindow] = []
    with shown_progress(output) as show:
        total_s = sum(plan.length_s for plan in plans) * len(sides)

        def on_window(plan: ArrivalPlan, done: float) -> None:
            left = f"{plan.rate:g} requests/s, about {format_time_left(total_s * (1 - done))} left"
            show(done, left if output.redraws_messages else f"measuring, about {format_time_left(total_s)}")

        warm_up = chosen.warm_up
        error = find_error(
            lambda: run_plans(
                sides, plans, options.params, windows, num_slots=num_slots, warm_up=warm_up, on_window=on_window
            )
        )
    return BenchResult([], len(plans) * len(sides), error, windows=windows)


def find_error(run: Callable[[], None]) -> EagleLocalError | None:
    """Run it, and return why it ended early: Ctrl-C or a failure."""
    try:
        run()
    except KeyboardInterrupt:
        return Cancelled("stopped")
    except EagleLocalError as failure:
        return failure
    return None


def limit_time(limit_s: float) -> IsNeeded:
    """Return a predicate: every group is needed until `limit_s` seconds from now have passed.

    Later only the groups that a result requires: FEWEST_PROMPTS of each category, waves, warm-up.
    """
    began_at = time.monotonic()

    def is_needed(group: PromptGroup) -> bool:
        is_spare = group.is_counted and group.concurrency == 1 and group.unit >= FEWEST_PROMPTS
        return not is_spare or time.monotonic() - began_at < limit_s

    return is_needed


def show_progress(show: ShowProgress, *, has_bar: bool) -> OnAsk:
    """Return a callback that shows the progress of the groups; in a bar with category and remaining time."""
    began_at = time.monotonic()

    def on_ask(group: PromptGroup, done: float) -> None:
        at_once = f", {group.concurrency} at once" if group.concurrency > 1 else ""
        what = f"measuring{at_once}"
        if has_bar:
            left_s = (time.monotonic() - began_at) * (1 - done) / done if done else 0.0
            what = f"{group.category}{at_once}{f', about {format_time_left(left_s)} left' if done else ''}"
        show(done, what)

    return on_ask


def format_time_left(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
