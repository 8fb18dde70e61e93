"""`eaglelocal bench`: what speculation gains here, measured in alternating pairs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli.output import Output, standard_output
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.bench.pairs import Run
    from eaglelocal.bench.prompts import Conversation
    from eaglelocal.core.events import EngineInfo
    from eaglelocal.hub.wish import Wish

DEFAULT_PAIRS = 5


def bench(
    target: Annotated[str, typer.Option(help="What to measure: demo, demo@1b:bf16, ./model.gguf.")] = "demo",
    draft: Annotated[str, typer.Option(help="auto, or the path of a head or draft model.")] = "auto",
    spec: Annotated[str, typer.Option(help="Draft lengths, such as 2,3,4; auto: as chat drafts.")] = "auto",
    category: Annotated[str, typer.Option(help="Kinds of work, such as chat,math; all if unset.")] = "",
    prompts: Annotated[Path | None, typer.Option(help="Your own prompts, one a line, or JSON lines.")] = None,
    pairs: Annotated[int, typer.Option(help="Prompts of each kind.", min=1)] = DEFAULT_PAIRS,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    threads: Annotated[int | None, typer.Option(help="Threads (default: the cores this process may use).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Measure plain against speculative decoding: pairs of runs, A B A B, as ratios.

    \b
    eaglelocal bench
    eaglelocal bench --target demo@1b:bf16 --spec 2,3,4 --pairs 20 --json
    """
    from eaglelocal.bench.prompts import built_in, from_file
    from eaglelocal.bench.report import as_object, table
    from eaglelocal.hub.wish import Wish

    output = standard_output()
    lengths = draft_lengths(spec)
    asked = from_file(prompts) if prompts else built_in(tuple(filter(None, category.split(","))), pairs)
    longest = max((n for n in lengths if n is not None), default=None)
    wish = Wish(target=target, draft=draft, spec="auto" if longest is None else longest, threads=threads)
    runs, info = measure(wish, asked, lengths, max_tokens=max_tokens, output=output)
    output.data(f"{info.target} with {info.draft}, {info.threads} threads, {info.library}")
    output.data(table(runs))
    if as_json:
        output.object(as_object(runs, info, machine_name()))


def draft_lengths(spec: str) -> list[int | None]:
    """`auto` or `2,3,4` -> lengths; None stands for auto."""
    try:
        lengths = [None if part == "auto" else int(part) for part in spec.split(",")]
    except ValueError as error:
        raise UsageError(f"--spec must be auto or numbers such as 2,3,4, not {spec!r}") from error
    if any(length is not None and length < 1 for length in lengths):
        raise UsageError(f"a draft length to measure is at least 1, not {spec!r}", hint="plain runs are in every pair")
    return lengths


def measure(
    wish: Wish,
    asked: Mapping[str, Sequence[Conversation]],
    lengths: Sequence[int | None],
    *,
    max_tokens: int,
    output: Output,
) -> tuple[Sequence[Run], EngineInfo]:
    """Load both engines and run the pairs."""
    import dataclasses

    from eaglelocal.bench.pairs import Pairing
    from eaglelocal.client.engine_client import EngineClient
    from eaglelocal.core.events import LoadProgress
    from eaglelocal.hub.resolve import resolve

    with contextlib.ExitStack() as opened:
        progress = output.progress()
        opened.callback(progress.finish)
        plan = resolve(wish, on_progress=lambda fraction, what: progress(LoadProgress(fraction, what)))
        if not plan.speculates:
            raise UsageError(f"there is nothing to compare: {plan.draft_reason}", hint="a --draft that fits the target")
        drafted = opened.enter_context(EngineClient(plan, on_progress=progress))
        off = dataclasses.replace(plan, draft_kind="none", draft=None, num_draft_tokens=0, draft_reason="switched off")
        plain = opened.enter_context(EngineClient(off, on_progress=progress))
        info = drafted.start()
        plain.start()
        progress.finish()
        pairs_done = output.progress()
        opened.callback(pairs_done.finish)

        def on_pair(label: str, done: int, total: int) -> None:
            pairs_done(LoadProgress(done / total, f"pair {done} of {total}"))

        return Pairing(plain, drafted, max_tokens).run(asked, lengths, on_pair), info


def machine_name() -> str:
    """The processor or GPU that the figures belong to."""
    from eaglelocal.probe.probe import probe

    machine = probe()
    return ", ".join(gpu.name or "GPU" for gpu in machine.gpus) or machine.cpu.name or "unknown"
