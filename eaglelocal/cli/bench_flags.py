"""The flags that only `bench` has. bench.py reads their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eaglelocal.core.user_paths import expand_path

DEFAULT_PAIRS = 5
LIMIT_S = 100.0  # for each mode, loading excluded; only if no flag sets the length of the run
MIN_ANSWER = 16  # tokens: the speed of shorter answers is too uncertain

# what is compared
Modes = Annotated[
    str | None, typer.Option(metavar="MODES", help="Modes to measure: auto, pid and draft lengths, such as auto,2,4,8.")
]
Against = Annotated[str | None, typer.Option(metavar="URL", help="Compare with this OpenAI-compatible server too.")]
AgainstModel = Annotated[str | None, typer.Option(metavar="NAME", help="Model of that server; unset: its first.")]
KeyFile = Annotated[
    Path | None, typer.Option(parser=expand_path, metavar="FILE", help="File with the key of that server.")
]

# which prompts
Category = Annotated[
    str, typer.Option(metavar="NAME,...", help="Categories of prompts, such as chat,math; unset: all.")
]
Prompts = Annotated[
    Path | None,
    typer.Option(parser=expand_path, metavar="FILE", help="File of your own prompts, one a line, as text or JSON."),
]
Pairs = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Prompts of each category; unset: as many as two minutes hold, or all of --prompts.", min=1
    ),
]
Repeats = Annotated[int, typer.Option(metavar="N", help="How often each prompt is sent.", min=1)]
WarmUp = Annotated[int, typer.Option(metavar="N", help="Answers of each mode before the measurement.", min=0)]
Concurrency = Annotated[str, typer.Option(metavar="N,...", help="Requests at the same time, such as 1,2,4,8.")]

# how it is answered
MaxTokens = Annotated[int, typer.Option(metavar="N", help="Tokens of each answer.", min=MIN_ANSWER)]
Skip = Annotated[
    int, typer.Option(metavar="N", help="Leave the first N tokens of each answer out of its speed.", min=0)
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Continue every answer to --max-tokens.")]
Temperature = Annotated[
    float, typer.Option(metavar="T", help="Sampling temperature; 0 always takes the likeliest token.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the answers, if --temperature is above 0.", min=0)]
Parallel = Annotated[str | None, typer.Option(metavar="N", help="Slots; unset: the largest --concurrency.")]

# what comes out
Svg = Annotated[Path | None, typer.Option(parser=expand_path, metavar="FILE", help="Write a chart to this SVG file.")]
Report = Annotated[
    Path | None,
    typer.Option(
        parser=expand_path,
        metavar="FILE",
        help="Write a page to post: machine, model, predicted and measured (and FILE's .json).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
