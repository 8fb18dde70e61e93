"""The flags that several commands share, named once. All are text: settings reads and checks the values.

So a wrong value has one message, wherever it came from: flag, environment or file.
"""

from __future__ import annotations

from typing import Annotated

import typer

VARIABLES = (
    "Every option of a value has a variable and a line in the config file: --top-k is EAGLELOCAL_TOP_K and top_k."
)

# what answers
Target = Annotated[str | None, typer.Option(metavar="REF", help="demo, demo@1b:bf16, ./model.gguf.")]
Draft = Annotated[
    str | None, typer.Option(metavar="REF", help="auto, ngram, none, or a GGUF: a head or a small model.")
]
Spec = Annotated[str | None, typer.Option(metavar="auto|off|pid|N", help="Tokens to draft ahead; auto: as pays.")]

# how it answers
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")]
Temperature = Annotated[str | None, typer.Option(metavar="T", help="0: always the likeliest token.")]
MaxTokens = Annotated[str | None, typer.Option(metavar="N", help="Unset: until the context is full.")]
Seed = Annotated[str | None, typer.Option(metavar="N", help="The same seed gives the same answer.")]
TopK = Annotated[str | None, typer.Option(metavar="N", help="Only the N likeliest tokens; 0: all.")]
TopP = Annotated[str | None, typer.Option(metavar="P", help="Only the likeliest tokens that sum to P.")]
MinP = Annotated[str | None, typer.Option(metavar="P", help="No token below P times the likeliest.")]

# how it runs; unset: as planned
Threads = Annotated[str | None, typer.Option(metavar="N", help="Unset: the cores this process may use.")]
GpuLayers = Annotated[str | None, typer.Option(metavar="auto|N", help="Layers on the GPU.")]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="The GPU, as llama.cpp names it.")]
Split = Annotated[str | None, typer.Option(metavar="HOW", help="Over several GPUs: layer, row or none.")]
KvType = Annotated[str | None, typer.Option(metavar="TYPE", help="Of the KV cache: f16, q8_0 or q4_0.")]
FlashAttn = Annotated[str | None, typer.Option(metavar="auto|on|off", help="Flash attention.")]
Ctx = Annotated[str | None, typer.Option(metavar="N", help="Tokens of a conversation.")]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
