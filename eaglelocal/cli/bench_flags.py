"""The flags that only `bench` has. bench.py reads their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PAIRS = 5
LIMIT_S = 100.0  # for each mode, loading excluded; only if no flag sets the length of the run
MIN_ANSWER = 16  # tokens: the speed of shorter answers is too uncertain

# what is compared
Modes = Annotated[str | None, typer.Option(metavar="MODES", help="auto, pid and draft lengths: auto,2,4,8.")]
Against = Annotated[str | None, typer.Option(metavar="URL", help="A server (OpenAI), asked the same in turn.")]
AgainstModel = Annotated[str | None, typer.Option(metavar="NAME", help="Which of its models. Unset: its first.")]
KeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="The key of that server.")]

# what is asked
Category = Annotated[str, typer.Option(metavar="NAME,...", help="Kinds of work: chat,math. Unset: all.")]
Prompts = Annotated[Path | None, typer.Option(metavar="FILE", help="Your own: lines of text, or JSON lines.")]
Pairs = Annotated[
    int | None,
    typer.Option(metavar="N", help="Prompts of each kind. Unset: what two minutes hold; all of a file.", min=1),
]
Repeats = Annotated[int, typer.Option(metavar="N", help="How often each is asked.", min=1)]
WarmUp = Annotated[int, typer.Option(metavar="N", help="Answers of each mode that do not count.", min=0)]
Concurrency = Annotated[str, typer.Option(metavar="N,...", help="Requests at once: 1,2,4,8.")]

# how it is answered
MaxTokens = Annotated[int, typer.Option(metavar="N", help="Tokens of each answer.", min=MIN_ANSWER)]
Skip = Annotated[int, typer.Option(metavar="N", help="First tokens of each answer that do not count.", min=0)]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Answers go on to --max-tokens.")]
Temperature = Annotated[float, typer.Option(metavar="T", help="0: always the likeliest token.")]
Seed = Annotated[int, typer.Option(metavar="N", help="With a temperature: the same seed, the same answers.", min=0)]
Parallel = Annotated[str | None, typer.Option(metavar="N", help="Slots. Unset: the largest --concurrency.")]

# what comes out
Svg = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a chart.")]
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object.")]
