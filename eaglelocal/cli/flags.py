"""The flags that several commands share. All are text: settings.py parses and checks the values.

So a wrong value gives the same message, whether it came from a flag, the environment or the file.
"""

from __future__ import annotations

from typing import Annotated

import typer

VARIABLES = "Nearly every option has a variable, most a line in the config file: --top-k is EAGLELOCAL_TOP_K and top_k."

# what answers
Target = Annotated[
    str | None, typer.Option(metavar="REF", help="demo, demo@1b:bf16, qwen3-8b, user/repo:Q8_0, ./x.gguf.")
]
Url = Annotated[str | None, typer.Option(metavar="URL|none", help="Ask this server (OpenAI); none: load a model.")]
Draft = Annotated[
    str | None, typer.Option(metavar="REF", help="auto, ngram, mtp, none, or a head or small model: user/repo, a GGUF.")
]
Mmproj = Annotated[
    str | None, typer.Option(metavar="auto|none|FILE", help="What makes images readable; auto: found beside the model.")
]
Images = Annotated[
    list[str] | None, typer.Option("--image", metavar="FILE", help="A picture to ask about; can be repeated.")
]
DraftType = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Weights of a head: auto (q4_0), q8_0, q4_0, file: as they are.")
]
Spec = Annotated[str | None, typer.Option(metavar="auto|off|pid|N", help="Tokens to draft; auto: as many as pay.")]

# how it answers
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")]
Temperature = Annotated[str | None, typer.Option(metavar="T", help="0: always the likeliest token.")]
MaxTokens = Annotated[str | None, typer.Option(metavar="N", help="Unset: until the context is full.")]
Seed = Annotated[str | None, typer.Option(metavar="N", help="The same seed gives the same answer.")]
TopK = Annotated[str | None, typer.Option(metavar="N", help="Only the N likeliest tokens; 0: all.")]
TopP = Annotated[str | None, typer.Option(metavar="P", help="Only the likeliest tokens that sum to P.")]
MinP = Annotated[str | None, typer.Option(metavar="P", help="No token below P times the likeliest.")]

# how it runs; unset: the planner decides
Threads = Annotated[str | None, typer.Option(metavar="N", help="Unset: the cores this process may use.")]
GpuLayers = Annotated[str | None, typer.Option(metavar="auto|N", help="Layers on the GPU.")]
NCpuMoe = Annotated[str | None, typer.Option(metavar="auto|N", help="Experts of the first N layers stay in RAM.")]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="The GPU, as llama.cpp names it.")]
Split = Annotated[str | None, typer.Option(metavar="HOW", help="Over several GPUs: layer, row, none; or shares: 3,1.")]
KvType = Annotated[str | None, typer.Option(metavar="TYPE", help="Of the KV cache: f16, q8_0 or q4_0.")]
CacheRam = Annotated[
    str | None, typer.Option(metavar="MIB", help="Main memory for conversations whose slot others need; 0: none.")
]
FlashAttn = Annotated[str | None, typer.Option(metavar="auto|on|off", help="Flash attention.")]
Ctx = Annotated[str | None, typer.Option(metavar="N", help="Tokens of a conversation.")]

Parallel = Annotated[str | None, typer.Option(metavar="N", help="Answers at once, 4 if unset; each has --ctx tokens.")]

Slots = Annotated[str | None, typer.Option("--parallel", metavar="N", help="Slots, 1 if unset; an answer takes one.")]

# how it serves
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Any but loopback needs a key.")]
Port = Annotated[str | None, typer.Option(metavar="N", help="8421 if unset.")]
Models = Annotated[str | None, typer.Option(metavar="REF,REF", help="More models, loaded when asked for.")]
MaxLoaded = Annotated[str | None, typer.Option(metavar="N", help="Models loaded at once; 0: as many as fit.")]
Alias = Annotated[str | None, typer.Option(metavar="NAME,NAME", help="More names of the first model; '*': any.")]
ApiKeyFile = Annotated[str | None, typer.Option(metavar="FILE", help="Lines `name: key`; a new file gets a key.")]
AllowedHosts = Annotated[str | None, typer.Option(metavar="NAME,NAME", help="More names of this server.")]
CorsOrigins = Annotated[str | None, typer.Option(metavar="URL,URL", help="Web pages that may ask.")]
MaxWaiting = Annotated[str | None, typer.Option(metavar="N", help="Requests that may wait; then 429.")]
RequestTimeout = Annotated[str | None, typer.Option(metavar="S", help="Seconds for an answer, waiting included.")]
IdleUnload = Annotated[str | None, typer.Option(metavar="S", help="Unload after so long idle; 0: never.")]
Drain = Annotated[str | None, typer.Option(metavar="S", help="Seconds for answers to end when stopped.")]
Web = Annotated[bool, typer.Option("--web", help="The monitor in a browser, on --web-port.")]
WebPort = Annotated[str | None, typer.Option(metavar="N", help="8422 if unset.")]
Log = Annotated[str | None, typer.Option(metavar="text|json", help="How stderr is written.")]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
