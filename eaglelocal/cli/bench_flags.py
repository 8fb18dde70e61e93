"""The flags that only `bench` has. bench.py reads their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path

DEFAULT_PAIRS = 5
LIMIT_S = 100.0  # for each mode, loading excluded; only if no flag sets the length of the run
MIN_ANSWER = 16  # tokens: the speed of shorter answers is too uncertain


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """The flags that only `bench` has, or with another meaning than elsewhere."""

    spec: Annotated[
        str | None,
        typer.Option(metavar="MODES", help="Modes to measure: auto, pid and draft lengths, such as auto,2,4,8."),
    ] = None
    category: Annotated[
        str, typer.Option(metavar="NAME,...", help="Categories of prompts, such as chat,math; unset: all.")
    ] = ""
    prompts: Annotated[
        Path | None,
        typer.Option(parser=expand_path, metavar="FILE", help="File of your own prompts, one a line, as text or JSON."),
    ] = None
    pairs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Prompts of each category; unset: as many as two minutes hold, or all of --prompts.",
            min=1,
        ),
    ] = None
    repeats: Annotated[int, typer.Option(metavar="N", help="How often each prompt is sent.", min=1)] = 1
    warm_up: Annotated[int, typer.Option(metavar="N", help="Answers of each mode before the measurement.", min=0)] = 2
    concurrency: Annotated[str, typer.Option(metavar="N,...", help="Requests at the same time, such as 1,2,4,8.")] = "1"
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of each answer.", min=MIN_ANSWER)] = 64
    skip: Annotated[
        int, typer.Option(metavar="N", help="Leave the first N tokens of each answer out of its speed.", min=0)
    ] = 0
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Continue every answer to --max-tokens.")] = False
    temperature: Annotated[
        float, typer.Option(metavar="T", help="Sampling temperature; 0 always takes the likeliest token.")
    ] = 0.0
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the answers, if --temperature is above 0.", min=0)] = 0
    against: Annotated[
        str | None, typer.Option(metavar="URL", help="Compare with this OpenAI-compatible server too.")
    ] = None
    against_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model of that server; unset: its first.")
    ] = None
    against_key_file: Annotated[
        Path | None, typer.Option(parser=expand_path, metavar="FILE", help="File with the key of that server.")
    ] = None
    parallel: Annotated[str | None, typer.Option(metavar="N", help="Slots; unset: the largest --concurrency.")] = None
    svg: Annotated[
        Path | None, typer.Option(parser=expand_path, metavar="FILE", help="Write a chart to this SVG file.")
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            parser=expand_path,
            metavar="FILE",
            help="Write a page to post: machine, model, predicted and measured (and FILE's .json).",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False
