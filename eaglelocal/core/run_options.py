"""The options of a run as the user gave them, each named like its flag.

Planning reads them, and puts its decisions about open options into a `Plan`. Nothing is written back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from eaglelocal.core.adapters import MAX_ADAPTERS, AdapterFile, parse_adapter
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import parse_spec
from eaglelocal.core.tensor_overrides import TensorOverride, parse_overrides
from eaglelocal.errors import UsageError

AUTO, NONE, NGRAM, LOOKAHEAD, MTP = "auto", "none", "ngram", "lookahead", "mtp"
PLANNED_KV_TYPES = ("f16", "q8_0", "q8_0,q4_0", "q5_1", "q4_0")  # that planning chooses among, the largest first
USER_KV_TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
KV_TYPES = (*USER_KV_TYPES, "bf16", "f32")
MODEL_OPTIONS = ("ctx", "kv_type", "n_cpu_moe")  # options whose value another model may be unable to take


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of one run; None and "auto" leave the choice to planning.

    target           a reference; None: the best model on disk, else the embedded one
    mmproj           auto, none, or the path of a projector for images
    draft            the model that drafts: auto, mtp, none, an entry of the catalog, a path of a .gguf; ngram: none
    lookups          the drafters without a model, beside it or alone, of LOOKUPS: ngram, lookahead
    draft_type       of a head's weights: auto, q4_0, q8_0, or file
    lora             LoRA adapters of the target: FILE or FILE:SCALE
    spec             auto, off, pid, or a number of draft tokens
    ctx              tokens of each slot
    parallel         slots
    gpu_layers       as llama.cpp counts them: the output layer is one
    n_cpu_moe        layers whose experts stay in RAM
    override_tensor  tensors of the target that lie elsewhere than their layer: PATTERN=DEVICE
    split            layer, tensor, row, none, or the shares of the GPUs, as 3,1
    rpc              addresses of rpc-servers that hold layers
    kv_type          of the cache: one type, or those of keys and of values, as q8_0,q5_1
    goal             speed, balanced or quality: the criterion that counts most for the choice of a model
    cache_ram        MiB of RAM for conversations that were evicted from their slot; None: by free memory
    lookup_memory    tokens of each owner's texts that are kept on disk for lookups; 0: none
    cache_disk       GB on disk for the caches of conversations, which then survive a restart; 0: none
    binds_answers    prepare grammars while loading, not with the first answer that needs them
    is_brief         the model is loaded for one answer, so that loading time counts as much as speed
    learns           draft with a head's current learned version, and keep learning
    model_folders    folders of the user's own models; a target may be a name from them
    origins          (option, where it was set) of MODEL_OPTIONS, if not by a flag: each model takes what it can
    """

    target: str | None = None
    mmproj: str = AUTO
    draft: str = AUTO
    lookups: tuple[str, ...] = (NGRAM,)
    draft_type: str = AUTO
    lora: tuple[str, ...] = ()
    spec: str | int = AUTO
    ctx: int | None = None
    parallel: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    override_tensor: tuple[str, ...] = ()
    device: str | None = None
    split: str = "layer"
    rpc: tuple[str, ...] = ()
    kv_type: str | None = None
    flash_attn: str = AUTO
    goal: str = "balanced"
    cache_ram: int | None = 0
    lookup_memory: int = 0
    cache_disk: float = 0.0
    binds_answers: bool = False
    is_brief: bool = False
    learns: bool = False
    model_folders: tuple[str, ...] = ()
    origins: tuple[tuple[str, str], ...] = ()

    @property
    def drafts(self) -> bool:
        """Return whether drafting is on. Raises UsageError for an invalid `spec`."""
        return self.draft != NONE and parse_spec(self.spec).max_draft > 0

    def check_cache(self) -> None:
        """Raise UsageError for a cache that llama.cpp refuses with this flash attention or split."""
        if self.flash_attn == "off" and self.kv_type is not None and split_kv_type(self.kv_type)[1] != "f16":
            raise UsageError(f"--kv-type {self.kv_type} needs flash attention", hint="--flash-attn auto")
        if self.split_mode != TENSOR:
            return
        if self.flash_attn == "off":
            raise UsageError("--split tensor needs flash attention", hint="--flash-attn auto")
        if self.kv_type not in (None, "f16"):
            raise UsageError(f"--split tensor cannot divide a cache of type {self.kv_type}", hint="--kv-type f16")
        if self.rpc:
            raise UsageError("--split tensor divides layers among this machine's GPUs, not --rpc", hint="--split layer")

    def explain_cuts(self, model: str, **used: object) -> Iterator[str]:
        """Yield how the options that a model's run uses differ from those that were set for every model.

        used  the value of each of MODEL_OPTIONS, by name
        """
        for name, place in self.origins:
            asked = getattr(self, name)
            if asked not in (None, used[name]):
                yield f"{model} takes {name} {used[name]}, not the {asked} of {place}"

    @property
    def adapters(self) -> tuple[AdapterFile, ...]:
        """Return the LoRA adapters. Raises UsageError."""
        if len(self.lora) > MAX_ADAPTERS:
            raise UsageError(f"--lora names {len(self.lora)} adapters: at most {MAX_ADAPTERS} can be loaded")
        try:
            return tuple(map(parse_adapter, self.lora))
        except ValueError as error:
            raise UsageError(f"--lora must be {error}") from None

    @property
    def overrides(self) -> tuple[TensorOverride, ...]:
        """Return the tensors on devices of their own. Raises UsageError."""
        try:
            return tuple(each for text in self.override_tensor for each in parse_overrides(text))
        except ValueError as error:
            raise UsageError(f"--override-tensor must be {error}") from None

    @property
    def names_draft(self) -> bool:
        """Return whether the user named a draft, which is then used even if it is not predicted to pay off."""
        return self.draft not in (AUTO, NONE, NGRAM)

    @property
    def split_mode(self) -> str:
        """Return layer, tensor, row or none. Raises UsageError."""
        return self._split()[0]

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the share of each GPU; empty: by their free memory. Raises UsageError."""
        return self._split()[1]

    def _split(self) -> tuple[str, tuple[float, ...]]:
        try:
            return parse_split(self.split)
        except ValueError as error:
            raise UsageError(f"--split must be {error}, not {self.split}") from None


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model options that the user chose while chatting; None: as at the start."""

    target: str | None = None
    spec: str | None = None  # auto, off, N
    draft: str | None = None  # as --draft
    ctx: int | None = None  # tokens
    kv_type: str | None = None

    def retarget(self, target: str, running: str = "") -> ModelChoice:
        """Return the choice for another model: a context or the file of a draft was chosen for one model only.

        running: the name of the model that runs by this choice; for that one nothing changes
        """
        if target in (self.target, running):
            return self
        draft = self.draft if self.draft in (AUTO, NGRAM, NONE) else None  # as any model can have it
        return replace(self, target=target, draft=draft, ctx=None)


def apply_choice(options: RunOptions, choice: ModelChoice) -> RunOptions:
    """Return the options with the choices that were made while chatting.

    A draft, projector, adapter, --n-cpu-moe or --override-tensor belongs to its target: another one does not get it.
    """
    if choice.target:
        draft = NONE if options.draft == NONE else AUTO
        mmproj = NONE if options.mmproj == NONE else AUTO
        of_target = replace(options, target=choice.target, mmproj=mmproj, lora=(), n_cpu_moe=None, override_tensor=())
        options = choose_draft(of_target, draft)
    if choice.draft:
        options = choose_draft(options, choice.draft)
    if choice.spec is not None:
        options = replace(options, spec=int(choice.spec) if choice.spec.isdecimal() else choice.spec)
    origins = tuple((name, place) for name, place in options.origins if getattr(choice, name, None) is None)
    kv_type = choice.kv_type or options.kv_type
    return replace(options, ctx=choice.ctx or options.ctx, kv_type=kv_type, origins=origins)


def choose_draft(options: RunOptions, text: str) -> RunOptions:
    """Return the options with another value of --draft."""
    draft = parse_draft(text)
    return replace(options, draft=draft.model, lookups=draft.lookups)


# ---- `--draft`, which names what drafts
#
# auto, mtp, none, REF  a model, found or named, with a lookup beside it; none: nothing
# ngram, lookahead      drafters without a model
# REF,lookahead         exactly these; at most one of them is a model
LOOKUP = "lookup in the text so far"
# drafters without a model: their names, for `--draft`, and how people call them; loading/draft_loader.py opens them
LOOKUPS = {NGRAM: LOOKUP, LOOKAHEAD: LOOKAHEAD}


def list_draft_words() -> tuple[str, ...]:
    """Return the values of `--draft` that are not references."""
    return AUTO, *LOOKUPS, MTP, NONE


class DraftSources(NamedTuple):
    """The drafters of a run.

    model    auto, mtp, none, or a reference; ngram: no model. With commas it names several, or is a path with commas:
             hub/draft_resolver.py decides
    lookups  names of drafters without a model, of LOOKUPS
    """

    model: str
    lookups: tuple[str, ...]


def parse_draft(text: str) -> DraftSources:
    """Parse a value of `--draft`. Raises UsageError if `none` is combined with others, or a name is missing.

    parse_draft("lookahead,ngram") is ("ngram", ("lookahead", "ngram")), parse_draft("./h.gguf") is that and a lookup.
    """
    names = [name.strip() for name in text.split(",")]
    lookups = tuple(dict.fromkeys(name for name in names if name in LOOKUPS))
    if lookups and "" in names:  # without a lookup it is one reference: a file may have two commas in its name
        raise UsageError(f"--draft {text}: a name is missing", hint=f"--draft {','.join(filter(None, names))}")
    models = [name for name in names if name not in LOOKUPS]
    if not models:
        return DraftSources(NGRAM, lookups)
    if NONE in models and len(names) > 1:
        raise UsageError(f"--draft {text} is contradictory: `none` means no draft at all", hint="--draft none")
    return DraftSources(",".join(models), lookups or (NGRAM,))


# ---- `--split`, which divides a model among GPUs: `layer`, `tensor`, `row`, `none`, or each GPU's share, as `3,1`
TENSOR = "tensor"  # each layer is divided evenly, and all GPUs compute at once
MODES = ("layer", TENSOR, "row", "none")
MAX_SHARES = 16  # llama.cpp's limit of devices


def suggest_split(num_gpus: int) -> str:
    """Return the hint for a wrong number of shares: an equal one for each of the GPUs, or none at all."""
    return f"--split {','.join(['1'] * num_gpus)}" if num_gpus > 1 else "leave --split out"


def parse_split(text: str) -> tuple[str, tuple[float, ...]]:
    """Return (mode, shares). Shares divide by layers, in llama.cpp's order of devices.

    Raises ValueError; its text says what the setting must be.

    >>> parse_split("3,1")
    ('layer', (3.0, 1.0))
    """
    if text in MODES:
        return text, ()
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not 2 <= len(shares) <= MAX_SHARES or not all(0 <= share < float("inf") for share in shares) or not any(shares):
        raise ValueError(f"one of {', '.join(MODES)}, or the share of each GPU, as 3,1")
    return "layer", shares


# ---- `--kv-type`, the type of the cache: `q8_0`, or those of keys and of values, as `q8_0,q5_1`
def parse_kv_type(text: str) -> str:
    """Return the types with a comma only if they differ. Raises ValueError; its text says what the setting must be.

    >>> parse_kv_type("q8_0, q5_1"), parse_kv_type("q8_0,q8_0")
    ('q8_0,q5_1', 'q8_0')
    """
    types = [part.strip() for part in text.split(",")]
    if len(types) > 2 or not set(types) <= set(USER_KV_TYPES):
        raise ValueError(f"one of {', '.join(USER_KV_TYPES)}, or two for keys and values, as q8_0,q5_1")
    return ",".join(dict.fromkeys(types))


def split_kv_type(kv_type: str) -> tuple[str, str]:
    """Return the types of keys and of values.

    >>> split_kv_type("q8_0"), split_kv_type("q8_0,q5_1")
    (('q8_0', 'q8_0'), ('q8_0', 'q5_1'))
    """
    keys, _, values = kv_type.partition(",")
    return keys, values or keys


# ---- `--rpc`, which names llama.cpp's rpc-servers: `HOST:PORT,HOST:PORT`
MAX_HOSTS, MAX_PORT = 16, 65_535  # llama.cpp's limit of servers
RPC_DEVICE = "RPC"  # llama.cpp numbers their devices over all servers: RPC0, RPC1 ...
WARNING = "RPC is neither encrypted nor authenticated: use it only in a network that you trust, or through a tunnel"


def parse_rpc_hosts(text: str) -> tuple[str, ...]:
    """Return the addresses in order. Raises ValueError; its text says what the setting must be.

    >>> parse_rpc_hosts("192.168.1.20:50052, box:50052")
    ('192.168.1.20:50052', 'box:50052')
    """
    hosts = tuple(part.strip() for part in text.split(","))
    if not all(map(_is_address, hosts)) or len(set(hosts)) < len(hosts) or len(hosts) > MAX_HOSTS:
        raise ValueError(f"at most {MAX_HOSTS} different addresses of rpc-servers, as 192.168.1.20:50052,box:50052")
    return hosts


def _is_address(text: str) -> bool:
    """Return whether llama.cpp can parse the address: it splits at the first colon, so IPv6 needs a host name."""
    host, _, port = text.partition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    return bool(host) and not any(char.isspace() for char in host) and is_number and 1 <= int(port) <= MAX_PORT


def is_rpc_device(name: str) -> bool:
    """Return True for a device of an rpc-server."""
    return name.startswith(RPC_DEVICE)


# ---- hints with a sufficient `--ctx`: larger for a prompt that is too long, smaller for little memory
CTX_STEP = 256  # a --ctx in a hint is a multiple of this
ANSWER_TOKENS = 1024  # room for an answer


def suggest_ctx(
    num_tokens: int, *, trained_ctx: int = 0, answer_tokens: int = ANSWER_TOKENS, is_lower_bound: bool = False
) -> str:
    """Return the flag with a sufficient number for a prompt, or the advice to shorten it.

    trained_ctx     positions that the model was trained for; 0: unknown
    is_lower_bound  the prompt has more than num_tokens tokens; the exact number is not known
    """
    if 0 < trained_ctx < num_tokens + min(answer_tokens, 1):
        return f"use a shorter prompt: the model was trained for {trained_ctx} tokens"
    if is_lower_bound:
        return f"--ctx {trained_ctx}, or a shorter prompt" if trained_ctx else "use a shorter prompt"
    wanted = -(-(num_tokens + answer_tokens) // CTX_STEP) * CTX_STEP
    return f"--ctx {min(wanted, trained_ctx or wanted)}"


def suggest_smaller_ctx(n_ctx: int, num_slots: int = 1) -> str:
    """Return the flags with half the context, or half the slots; "" if both are as small as they can be."""
    half = n_ctx // 2 // CTX_STEP * CTX_STEP or n_ctx // 2
    flags = [f"--ctx {half}"] if half else []
    return " or ".join([*flags, *([f"--parallel {num_slots // 2}"] if num_slots > 1 else [])])
