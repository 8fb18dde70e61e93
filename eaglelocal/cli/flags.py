"""The flags that several commands share. All are text: settings.py parses and checks the values.

So a wrong value gives the same message, whether it came from a flag, the environment or the file.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import typer

from eaglelocal.cli.completion import complete_draft, complete_target, complete_words
from eaglelocal.settings import PREFIX, READERS

VARIABLES = (
    "Nearly every option has an environment variable, and most have a line in the config file: "
    "--top-k is EAGLELOCAL_TOP_K and top_k."
)

# what answers
Target = Annotated[
    str | None,
    typer.Option(
        metavar="REF",
        help="The model: demo, demo@1b:bf16, qwen3-8b, user/repo:Q8_0, ./x.gguf.",
        autocompletion=complete_target,
    ),
]
Url = Annotated[
    str | None, typer.Option(metavar="URL|none", help="Ask this OpenAI-compatible server; none: load a model here.")
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="REF[,...]",
        help="What drafts: auto (unset), ngram, lookahead, mtp, none, or a head or small model (user/repo, GGUF).",
        autocompletion=complete_draft,
    ),
]
Mmproj = Annotated[
    str | None, typer.Option(metavar="auto|none|FILE", help="Projector for images; auto: the one beside the model.")
]
Images = Annotated[
    list[str] | None, typer.Option("--image", metavar="FILE", help="A picture to ask about; can be repeated.")
]
DraftType = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Weight type of a draft head: auto (q4_0), q8_0, q4_0, file: as it is stored.",
        autocompletion=complete_words("auto", "q8_0", "q4_0", "file"),
    ),
]
Spec = Annotated[
    str | None,
    typer.Option(
        metavar="auto|off|pid|N",
        help="Draft length: auto (unset) and pid adapt it, N (at most 16) is fixed.",
        autocompletion=complete_words("auto", "off", "pid"),
    ),
]

# how it answers
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")]
Temperature = Annotated[
    str | None,
    typer.Option(
        metavar="T", help="Sampling temperature; 0: always the likeliest token. Unset: the model's own, or 0.7."
    ),
]
MaxTokens = Annotated[
    str | None, typer.Option(metavar="N", help="Longest answer in tokens; unset: until the context is full.")
]
Seed = Annotated[str | None, typer.Option(metavar="N", help="The same seed gives the same answer.")]
TopK = Annotated[str | None, typer.Option(metavar="N", help="Sample from the N likeliest tokens; 0: from all.")]
TopP = Annotated[
    str | None, typer.Option(metavar="P", help="Sample from the likeliest tokens whose probabilities reach P.")
]
MinP = Annotated[str | None, typer.Option(metavar="P", help="Leave out tokens below P times the likeliest.")]

# how a chat begins
Continue = Annotated[bool, typer.Option("--continue", help="Go on with the conversation that was saved last.")]

# how it runs; unset: the planner decides
Threads = Annotated[
    str | None, typer.Option(metavar="N", help="CPU threads; unset: the cores that this process may use.")
]
GpuLayers = Annotated[str | None, typer.Option(metavar="auto|N", help="Layers on the GPU; unset: as many as fit.")]
NCpuMoe = Annotated[
    str | None,
    typer.Option(metavar="auto|N", help="Keep the experts of the first N layers in RAM; unset: as planned."),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="GPUs to use, in llama.cpp's names: CUDA0; unset: all.")
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="Split over several GPUs: layer (unset), tensor, row, none, or shares as 3,1.",
        autocompletion=complete_words("layer", "tensor", "row", "none"),
    ),
]
Rpc = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT,...", help="Place layers on llama.cpp's rpc-servers, in a network that you trust."),
]
KvType = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Type of the KV cache: f16, q8_0 or q4_0; unset: f16 if it fits.",
        autocompletion=complete_words("f16", "q8_0", "q4_0"),
    ),
]
CacheRam = Annotated[
    str | None,
    typer.Option(
        metavar="MIB",
        help="RAM for conversations that lost their slot; 0: none; unset: an eighth of what is free.",
    ),
]
LookupMemory = Annotated[
    str | None,
    typer.Option(
        metavar="off|TOKENS",
        help="Keep so many tokens of each key's texts on disk, to draft from; `eaglelocal forget` deletes them.",
    ),
]
CacheDisk = Annotated[
    str | None,
    typer.Option(
        metavar="off|GB",
        help="Keep long conversations' caches on disk, so that they go on after a restart without being read anew.",
    ),
]
Learn = Annotated[
    bool | None,
    typer.Option("--learn", help="Keep answers on disk, and let the head learn from them while nobody asks."),
]
LearnGb = Annotated[str | None, typer.Option(metavar="GB", help="Most that --learn keeps of each model's answers.")]
LearnDays = Annotated[str | None, typer.Option(metavar="DAYS", help="Days after which --learn drops an answer.")]
LearnAfter = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="Time without a request until learning begins.")
]
FlashAttn = Annotated[
    str | None,
    typer.Option(
        metavar="auto|on|off",
        help="Use flash attention.",
        autocompletion=complete_words("auto", "on", "off"),
    ),
]
Ctx = Annotated[
    str | None,
    typer.Option(metavar="N", help="Context of a conversation, in tokens; unset: as long as fits."),
]
Lora = Annotated[
    list[str] | None,
    typer.Option("--lora", metavar="FILE[:SCALE]", help="LoRA adapter of the model, a GGUF; can be repeated."),
]
NO_FLAGS: Mapping[str, object] = MappingProxyType({})
ANSWERING: Mapping[str, object] = MappingProxyType(  # adapters, and what is kept of answers
    {
        "lora": Lora,
        "cache_disk": CacheDisk,
        "learn": Learn,
        "learn_gb": LearnGb,
        "learn_days": LearnDays,
        "learn_after": LearnAfter,
    }
)
MACHINE = {
    "threads": Threads,
    "gpu_layers": GpuLayers,
    "n_cpu_moe": NCpuMoe,
    "device": Device,
    "split": Split,
    "rpc": Rpc,
    "kv_type": KvType,
    "flash_attn": FlashAttn,
    "ctx": Ctx,
}

Parallel = Annotated[
    str | None,
    typer.Option(metavar="N", help="Answers at once, at most 16; 4 if unset. Each has --ctx tokens."),
]
Slots = Annotated[
    str | None,
    typer.Option("--parallel", metavar="N", help="Slots, at most 16; 1 if unset. Each answer takes one."),
]

# how it serves
Host = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address to listen on, 127.0.0.1 if unset; others need a key."),
]
Port = Annotated[str | None, typer.Option(metavar="N", help="Port to listen on; 8421 if unset.")]
Models = Annotated[str | None, typer.Option(metavar="REF,REF", help="More models, loaded when a request names them.")]
MaxLoaded = Annotated[str | None, typer.Option(metavar="N", help="Most models loaded at once; 0 or unset: what fits.")]
Alias = Annotated[
    str | None, typer.Option(metavar="NAME,NAME", help="More names for the first model; '*' accepts any name.")
]
ApiKeyFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Keys, in lines `name: key`; a missing file is written with a new key."),
]
AllowedHosts = Annotated[
    str | None, typer.Option(metavar="NAME,NAME", help="More host names by which clients may call this server.")
]
Ssl = Annotated[
    str | None,
    typer.Option("--ssl", metavar="off|auto", help="HTTPS with a certificate of our own, whose fingerprint is shown."),
]
SslCert = Annotated[str | None, typer.Option(metavar="FILE", help="HTTPS with this certificate, in PEM.")]
SslKey = Annotated[str | None, typer.Option(metavar="FILE", help="Key of that certificate, in PEM.")]
SharedPrefix = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="System prompt, or how it begins, that is read once for all keys; can be repeated.",
    ),
]
CorsOrigins = Annotated[
    str | None, typer.Option(metavar="URL,URL", help="Web pages that may call this server from a browser.")
]
MaxWaiting = Annotated[
    str | None, typer.Option(metavar="N", help="Requests that may wait, 64 if unset; the server refuses more with 429.")
]
RequestTimeout = Annotated[
    str | None, typer.Option(metavar="S", help="Seconds that a request may take, including its wait; 3600 if unset.")
]
IdleUnload = Annotated[
    str | None, typer.Option(metavar="S", help="Unload a model after S seconds without requests; 0 (unset): never.")
]
Drain = Annotated[
    str | None,
    typer.Option(metavar="S", help="Seconds for running answers when the server stops; 30 if unset."),
]
Web = Annotated[bool, typer.Option("--web", help="Show the monitor in a browser, on --web-port.")]
WebPort = Annotated[str | None, typer.Option(metavar="N", help="Port of the monitor in a browser; 8422 if unset.")]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="text|json",
        help="Format of the log on stderr.",
        autocompletion=complete_words("text", "json"),
    ),
]

# a head that import and train write
HEAD_TYPES = ("f16", "bf16", "q8_0", "f32")
HeadOut = Annotated[
    str | None, typer.Option(metavar="FILE", help="File to write; unset: where `--draft auto` finds it.")
]
HeadType = Annotated[str, typer.Option(metavar="|".join(HEAD_TYPES), help="Weight type of the written head.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

Command = Callable[..., None]


def add_machine_flags(*, before: str, more: Mapping[str, object] = NO_FLAGS) -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of MACHINE, and `more`, to a command's signature, which typer reads.

    Their values are in the `params` of the command's context. A flag that the command declares itself is not added.

    before  name of the parameter before which --help lists them
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())
        place = list(signature.parameters).index(before)
        added = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
            for name, kind in {**MACHINE, **more}.items()
            if name not in signature.parameters
        ]

        @functools.wraps(command)
        def run(**values: object) -> None:
            command(**{name: value for name, value in values.items() if name in signature.parameters})

        run.__signature__ = signature.replace(parameters=[*own[:place], *added, *own[place:]])  # type: ignore[attr-defined]
        return run

    return decorate


# ---- flag variables: environment variables of flags that are no settings: EAGLELOCAL_NO_TUI for --no-tui,
# EAGLELOCAL_SAVE=0 for --no-save
#
# Variables of settings are read by settings.py, together with the config file; it has a list of the other names.
WITHOUT = ("--help", "--version", "--install-completion", "--show-completion")


def list_flag_variables(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield (variable, option) for each such flag of a command that typer built, and of its subcommands."""
    for below in getattr(command, "commands", {}).values():
        yield from list_flag_variables(below)
    for option in command.params:
        name = max(option.opts, key=len)
        if name.startswith("--") and name not in WITHOUT and option.name not in READERS:
            yield PREFIX + name.removeprefix("--").replace("-", "_").upper(), option


def set_variables(command: Any) -> None:
    """Let each of these flags be set by its variable, without showing it in the help of each flag."""
    for variable, option in list_flag_variables(command):
        option.envvar, option.show_envvar = variable, False


# ---- familiar flags: the flags of Ollama and llama-server, and ours that do the same. Pure
FLAGS: Mapping[str, str] = {
    "-m": "--target",
    "--model": "--target",
    "-c": "--ctx",
    "--ctx-size": "--ctx",
    "--num-ctx": "--ctx",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-np": "--parallel",
    "-t": "--threads",
    "-md": "--draft",
    "--model-draft": "--draft",
    "-fa": "--flash-attn",
    "-ctk": "--kv-type",
    "--cache-type-k": "--kv-type",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--temp": "--temperature",
    "-s": "--seed",
    "-sys": "--system",
    "--system-prompt": "--system",
    "--no-webui": "--no-tui",
}
OF_OTHER_COMMANDS: Mapping[str, Mapping[str, str]] = {  # flags that have another name in these of our commands
    "chat": {"--no-tui": "--plain", "--no-webui": "--plain"},
    "serve": {"--plain": "--no-tui"},
}
SHORT_FLAG = re.compile(r"(-[a-z]+)([0-9]\S*)?")  # `-c 4096` and `-c4096`


def translate_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command, its name first, with flags of others replaced, before a `--` that ends them.

    >>> translate_flags(["serve", "-m", "x.gguf", "-c4096"])
    ['serve', '--target', 'x.gguf', '--ctx', '4096']
    """
    flags = {**FLAGS, **OF_OTHER_COMMANDS.get(next(iter(arguments), ""), {})}
    translated: list[str] = []
    for number, word in enumerate(arguments):
        if word == "--":
            return [*translated, *arguments[number:]]
        flag, equals, value = word.partition("=")
        short = SHORT_FLAG.fullmatch(word)
        if flag in flags:
            translated.append(f"{flags[flag]}{equals}{value}")
        elif short is not None and short[2] and short[1] in flags:
            translated += [flags[short[1]], short[2]]
        else:
            translated.append(word)
    return translated


def find_familiar_flag(arguments: Sequence[str]) -> str:
    """Return the first flag of another program or command in the arguments; "" if there is none."""
    command = arguments[:1]
    return next((word for word in arguments[1:] if translate_flags([*command, word]) != [*command, word]), "")
