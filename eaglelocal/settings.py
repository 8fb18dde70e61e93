"""The user's settings, and the source of each: default < config file < environment < flag.

An unknown key, a wrong type or a value out of range is an error that names its place. An unset setting is None; the
code that uses it decides what that means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

from eaglelocal.core.atomic_file import OWN_FILE, write_atomically
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.plan import MAX_SLOTS
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import (
    MODES,
    USER_KV_TYPES,
    list_draft_words,
)
from eaglelocal.core.sampling import RANGES
from eaglelocal.core.setting_readers import (
    Reader,
    number_within,
    one_of,
    read_boolean,
    read_closing_words,
    read_keys,
    read_kv_type,
    read_list,
    read_overrides,
    read_paths,
    read_prose,
    read_rpc_hosts,
    read_split,
    read_text,
    read_thinking_limit,
    whole,
    word_or,
)
from eaglelocal.core.spelling import closest_word
from eaglelocal.core.tensor_overrides import EXAMPLE
from eaglelocal.core.terminal_text import decode_text
from eaglelocal.core.toml_text import TomlValue, read_toml_file, set_key
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ResourceError, UsageError

PREFIX = "EAGLELOCAL_"
DEFAULT = "default"
EDIT = "eaglelocal config edit"
FLAG = "flag"  # in the metadata of a setting
THEME_NAMES = (
    "dark", "light", "contrast", "terminal", "catppuccin-latte", "catppuccin-mocha", "dracula", "flexoki", "gruvbox",
    "monokai", "rose-pine", "tokyo-night",
)  # fmt: skip
MAX_CACHE_DISK = 100_000.0  # GB
MAX_LOOKUP_MEMORY = 2_000_000  # tokens; the index in RAM takes up to 600 bytes for each
OWN_VARIABLES = frozenset({"TRACEBACK", "ENGINE_LOG", "API_KEY", "ATTENTION"})
# of flags for a single invocation, which the config file does not accept
FLAG_VARIABLES = frozenset({
    "AGAINST", "AGAINST_KEY_FILE", "AGAINST_MODEL", "ALL", "ALLOW_TOOLS", "CATEGORY", "CONCURRENCY", "CONTINUE",
    "DRAFT_VOCAB",
    "EPOCHS", "FINGERPRINT", "FORCE", "FORMAT", "FROM", "GOAL", "HEADS", "IGNORE_EOS", "IMAGE", "JSON", "KIND",
    "MACHINE", "MEASURE", "NO_TRIAL", "NO_TUI", "ONCE", "OUT", "PAIRS", "PIN", "PLAIN",
    "PRINT", "PROMPTS", "PRUNE", "QUANT", "RAM", "RATE", "REPEATS", "REPORT", "SAVE", "SKIP", "SVG",
    "TAPS", "TARGET_REPO", "TINT", "TOKENS", "TORCH_DEVICE", "TYPE", "UNPIN", "VERIFY", "WARM_UP",
    "WORK", "YES",
    "CHECK", "DRAFT_METHOD", "DRAFT_REPO", "DRAFT_REVISION", "LOAD", "MIG", "QUEUE", "REVISION",
})  # fmt: skip
OTHER_VARIABLES = frozenset(PREFIX + name for name in OWN_VARIABLES | FLAG_VARIABLES)  # ours, but not settings


T = TypeVar("T")


# ---- the settings: each row is a setting, its default, how its value is read, and its flag
@dataclass(frozen=True, slots=True)
class Flag:
    """The reader of a setting, and its flag. Without a metavar the setting has no flag, or a switch.

    words  that the value can be, or all values: for completion and hints
    """

    read: Reader
    metavar: str = ""
    help: str = ""
    words: tuple[str, ...] = ()

    @property
    def kind(self) -> object:
        """Return the type of the flag's value as typed: READERS check and convert it, wherever it comes from."""
        if self.read is read_boolean:
            return bool | None
        return list[str] | None if self.read in (read_paths, read_overrides) else str | None


def setting(default: T, read: Reader, metavar: str = "", help: str = "", words: Sequence[str] = ()) -> T:
    made: T = field(default=default, metadata={FLAG: Flag(read, metavar, help, tuple(words))})
    return made


def choice(default: str, words: Sequence[str], metavar: str = "", help: str = "") -> str:
    return setting(default, one_of(*words), metavar, help, words)


COUNT, POSITIVE = word_or("auto", None, whole(0)), word_or("auto", None, whole(1))
THREADS = word_or("auto", None, whole(1, 512))  # GGML_MAX_N_THREADS of llama.cpp, which aborts with more


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The value of each setting; None means unset: chosen for this machine or model."""

    # what answers
    target: str | None = setting(
        None, read_text, "REF", "The model: demo, demo@1b:bf16, qwen3-8b, user/repo:Q8_0, ./x.gguf."
    )
    url: str | None = setting(
        None, read_text, "URL|none", "Ask this OpenAI-compatible server; none: load a model here."
    )
    mcp: str = setting(
        "auto",
        read_text,
        "auto|none|FILE",
        "Tool servers, in the shape of mcp.json; auto: that beside the config file.",
    )
    mmproj: str = setting("auto", read_text, "auto|none|FILE", "Projector for images; auto: the one beside the model.")
    draft: str = setting(
        "auto",
        read_text,
        "REF[,...]",
        f"What drafts: auto (unset), {', '.join(list_draft_words()[1:])}, or a head or small model (user/repo, GGUF).",
    )
    lora: tuple[str, ...] = setting(
        (), read_paths, "FILE[:SCALE]", "LoRA adapter of the model, a GGUF; can be repeated."
    )
    draft_type: str = choice(
        "auto",
        ("auto", "q8_0", "q4_0", "file"),
        "TYPE",
        "Weight type of a draft head: auto (q4_0), q8_0, q4_0, file: as it is stored.",
    )
    spec: str | int = setting(
        "auto",
        word_or("auto", "auto", word_or("off", "off", word_or("pid", "pid", whole(0)))),
        "auto|off|pid|N",
        "Draft length: auto (unset) and pid adapt it, N (at most 16) is fixed.",
        ("auto", "off", "pid"),
    )

    # how it runs; unset: the planner decides
    threads: int | None = setting(None, THREADS, "N", "CPU threads; unset: the cores that this process may use.")
    gpu_layers: int | None = setting(None, COUNT, "auto|N", "Layers on the GPU; unset: as many as fit.")
    n_cpu_moe: int | None = setting(
        None, COUNT, "auto|N", "Keep the experts of the first N layers in RAM; unset: as planned."
    )
    override_tensor: tuple[str, ...] = setting(
        (),
        read_overrides,
        "PATTERN=DEVICE",
        "Place the tensors whose name a regular expression finds, as in _exps=CPU; can be repeated.",
    )
    device: str | None = setting(None, read_text, "NAME", "GPUs to use, in llama.cpp's names: CUDA0; unset: all.")
    split: str = setting(
        "layer",
        read_split,
        "HOW",
        "Split over several GPUs: layer (unset), tensor, row, none, or shares as 3,1.",
        MODES,
    )
    rpc: tuple[str, ...] = setting(
        (), read_rpc_hosts, "HOST:PORT,...", "Place layers on llama.cpp's rpc-servers, in a network that you trust."
    )
    kv_type: str = setting(
        "f16",
        read_kv_type,
        "TYPE[,TYPE]",
        f"Type of the KV cache, or of keys and of values: {', '.join(USER_KV_TYPES)}; unset: f16 if it fits.",
        USER_KV_TYPES,
    )
    flash_attn: str = choice("auto", ("auto", "on", "off"), "auto|on|off", "Use flash attention.")
    cache_ram: int | None = setting(
        None, COUNT, "MIB", "RAM for conversations that lost their slot; 0: none; unset: an eighth of what is free."
    )
    lookup_memory: int = setting(
        0,
        word_or("off", 0, whole(0, MAX_LOOKUP_MEMORY)),
        "off|TOKENS",
        "Keep so many tokens of each key's texts on disk, to draft from; `eaglelocal forget` deletes them.",
    )
    cache_disk: float = setting(
        0.0,
        word_or("off", 0.0, number_within(0.0, MAX_CACHE_DISK)),
        "off|GB",
        "Keep long conversations' caches on disk, so that they go on after a restart without being read anew.",
    )
    learn: bool = setting(
        False, read_boolean, help="Keep answers on disk, and let the head learn from them in idle time."
    )
    learn_gb: float = setting(
        1.0, number_within(0.001, 10_000), "GB", "Most that --learn keeps of each model's answers."
    )
    learn_days: float = setting(30.0, number_within(1, 3650), "DAYS", "Days after which --learn drops an answer.")
    learn_after: float = setting(
        60.0, number_within(1, 86_400), "SECONDS", "Time without a request until learning begins."
    )
    ctx: int | None = setting(None, POSITIVE, "N", "Context of a conversation, in tokens; unset: as long as fits.")
    parallel: int | None = setting(
        None,
        word_or("auto", None, whole(1, MAX_SLOTS)),
        "N",
        "Answers at once, at most 64; unset: 4, in `train` 8. Each has --ctx tokens.",
    )

    # how it answers
    temperature: float = setting(
        0.7,
        number_within(*RANGES["temperature"]),
        "T",
        "Sampling temperature; 0: always the likeliest token. Unset: the model's own, or 0.7.",
    )
    top_k: int = setting(40, whole(*RANGES["top_k"]), "N", "Sample from the N likeliest tokens; 0: from all.")
    top_p: float = setting(
        0.95, number_within(*RANGES["top_p"]), "P", "Sample from the likeliest tokens whose probabilities reach P."
    )
    min_p: float = setting(0.05, number_within(*RANGES["min_p"]), "P", "Leave out tokens below P times the likeliest.")
    max_tokens: int | None = setting(
        None, whole(1, RANGES["max_tokens"][1]), "N", "Longest answer in tokens; unset: until the context is full."
    )
    thinking_budget: str = setting(
        "auto",
        read_thinking_limit,
        "N|off|EFFORT",
        "Limit of thinking: off, low, medium, high, or a number of tokens. An effort switches thinking on, "
        "in `chat` a number too. Unset: medium where the model has efforts.",
        ("off", "low", "medium", "high"),
    )
    thinking_message: str | None = setting(
        None, read_closing_words, help="Words that end thinking which has used up its budget."
    )
    stop_loops: bool | None = setting(
        None, read_boolean, help="End answers that repeat one passage without end; unset: only in `chat`."
    )
    seed: int | None = setting(None, whole(0, 2**32 - 1), "N", "The same seed gives the same answer.")
    system: str | None = setting(None, read_prose, "TEXT", "The system message.")

    # how it serves
    colour: str = choice("auto", ("auto", "always", "never"), help="Colors; auto: where the output is a terminal.")
    host: str = setting(
        "127.0.0.1", read_text, "ADDRESS", "Address to listen on, 127.0.0.1 if unset; others need a key."
    )
    ssl: str = choice(
        "off", ("off", "auto"), "off|auto", "HTTPS with a certificate of our own, whose fingerprint is shown."
    )
    ssl_cert: str | None = setting(None, read_text, "FILE", "HTTPS with this certificate, in PEM.")
    ssl_key: str | None = setting(None, read_text, "FILE", "Key of that certificate, in PEM.")
    port: int = setting(8421, whole(0, 65535), "N", "Port to listen on; 8421 if unset.")
    models: tuple[str, ...] = setting((), read_list, "REF,REF", "More models, loaded when a request names them.")
    alias: tuple[str, ...] = setting(
        (), read_list, "NAME,NAME", "More names for the first model; '*' accepts any name."
    )
    api_key_file: str | None = setting(
        None, read_text, "FILE", "Keys, in lines `name: key`; a missing file is written with a new key."
    )
    shared_prefix: tuple[str, ...] = setting(
        (), read_paths, "FILE", "System prompt, or how it begins, that is read once for all keys; can be repeated."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), read_list, "NAME,NAME", "More host names by which clients may call this server."
    )
    cors_origins: tuple[str, ...] = setting(
        (), read_list, "URL,URL", "Web pages that may call this server from a browser."
    )
    max_waiting: int = setting(
        64, whole(0, 10_000), "N", "Requests that may wait, 64 if unset; the server refuses more with 429."
    )
    request_timeout: float = setting(
        3600.0, number_within(1, 86_400), "S", "Seconds that a request may take, including its wait; 3600 if unset."
    )
    max_loaded: int = setting(0, whole(0, 64), "N", "Most models loaded at once; 0 or unset: what fits.")
    idle_unload: float = setting(
        0.0, number_within(0, 31_536_000), "S", "Unload a model after S seconds without requests; 0 (unset): never."
    )
    drain: float = setting(
        30.0, number_within(0, 3600), "S", "Seconds for running answers when the server stops; 30 if unset."
    )
    log: str = choice("text", ("text", "json"), "text|json", "Format of the log on stderr.")

    # how it looks
    theme: str = choice("dark", THEME_NAMES, help="Colors of the screens; terminal: its own.")
    glyphs: str = choice(
        "auto",
        ("auto", "unicode", "ascii"),
        help="What graphs are drawn with; auto: ascii unless the locale is UTF-8.",
    )
    figures: bool = setting(True, read_boolean, help="A line of figures below each answer of a chat.")
    notify: bool = setting(True, read_boolean, help="Notify of a long answer's end while another window has the focus.")
    keys: tuple[tuple[str, str], ...] = setting((), read_keys, help="Keys of the screens, by action, instead of ours.")
    set_by: tuple[tuple[str, str], ...] = ()  # (setting, place) of every setting that was set

    @classmethod
    def load(cls, flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path | None) -> Settings:
        """Read all sources and return the settings; a flag that is None was not given. Raises UsageError."""
        values: dict[str, Any] = {}
        places: dict[str, str] = {}
        of_file = _read_file(config_file) if config_file else ()
        for name, value, place in (*of_file, *_read_environment(environ), *_read_flags(flags)):
            try:
                values[name], places[name] = READERS[name](value), place
            except ValueError as error:
                subject = place if place == _as_flag(name) else f"{place}: {name}"
                hint = f"unset {place}" if place.startswith(PREFIX) else EDIT
                if place == _as_flag(name):
                    valid = suggest_value(name, value)
                    hint = f"{place} {valid}" if valid else f"leave {place} out"
                raise UsageError(f"{subject} must be {error}, not {_as_given(value)}", hint=hint) from None
        return cls(**values, set_by=tuple(places.items()))

    def is_set(self, name: str) -> bool:
        """Return whether any source set this setting, even to its default."""
        return any(setting == name for setting, _ in self.set_by)

    @property
    def model_folders(self) -> tuple[str, ...]:
        """Return the folders among `models`; they are written as paths. Raises UsageError if one is not there."""
        named = (one for one in self.models if one.startswith(("/", "~", "./", "../")) and not one.endswith(".gguf"))
        paths = {one: os.path.expanduser(one) for one in named}
        if missing := next((one for one, path in paths.items() if not os.path.exists(path)), None):
            place = self.origins()["models"]
            subject = place if place == _as_flag("models") else f"{place}: models"
            raise UsageError(f"{subject} names {missing}, which is not there", hint="make this folder, or leave it out")
        return tuple(one for one, path in paths.items() if os.path.isdir(path))

    def origins(self) -> Mapping[str, str]:
        """Return the source of each setting: `default`, the config file's path, the variable or the flag."""
        return MappingProxyType(dict.fromkeys(READERS, DEFAULT) | dict(self.set_by))


SETTINGS: Mapping[str, Flag] = MappingProxyType(
    {each.name: each.metadata[FLAG] for each in fields(Settings) if FLAG in each.metadata}
)
READERS: Mapping[str, Reader] = MappingProxyType({name: flag.read for name, flag in SETTINGS.items()})


def write_setting(config_file: Path, name: str, value: TomlValue | None) -> None:
    """Set one setting in the config file, which is made if it is missing; None: remove it. The rest stays as it is.

    Raises UsageError if it cannot be changed by itself, ResourceError if the file cannot be written.
    """
    path = config_file.resolve()  # a link to a file elsewhere stays a link
    try:
        exists = path.exists()
        if value is None and not exists:
            return
        content = decode_text(read_regular(path)) if exists else ""
        mode = path.stat().st_mode & 0o777 if exists else OWN_FILE
        write_atomically(path, set_key(content, name, value), mode=mode)
    except OSError as problem:
        raise ResourceError(
            f"cannot write {path}: {problem.strerror}", hint=f"ls -ld {quote_path(path.parent)}"
        ) from problem
    except ValueError as problem:
        raise UsageError(f"{path} was not changed: {problem}", hint=EDIT) from problem


def check_setting_name(name: str) -> str:
    """Return the name if it is that of a setting. Raises UsageError with the nearest one if not."""
    return _check_name(name, "config", str, otherwise="eaglelocal config show")


def read_setting(name: str, text: str) -> TomlValue:
    """Return a setting's value as the config file has it. Raises UsageError for an unknown name or a wrong value."""
    meant = name if name in READERS else closest_word(name, READERS) or ""
    try:
        value = READERS[meant or check_setting_name(name)](text)
    except ValueError as error:
        problem = f"{name} must be {error}, not {text!r}" if meant == name else f"config: unknown setting {name}"
        valid = suggest_value(meant or name, text)
        command = f"set {meant} {valid}" if valid else f"unset {meant}"
        raise UsageError(problem, hint=f"eaglelocal config {command}") from None
    check_setting_name(name)
    return cast(TomlValue, text if value is None else value)


def suggest_value(name: str, given: object) -> str:
    """Return a valid value of a setting: the word nearest to the given one, else the default; "" if it is unset."""
    if name == "override_tensor":
        return f"'{EXAMPLE}'"
    default = getattr(Settings(), name)
    if near := closest_word(str(given), SETTINGS[name].words):
        return near
    if isinstance(default, int | float) and not isinstance(default, bool):
        return f"{default:g}"
    return "" if default is None or default == () else str(default).lower()


def peek_setting(name: str, environ: Mapping[str, str], config_file: Path) -> object:
    """Return a setting's raw value, whether or not the other settings are valid; None if it is unset or unreadable."""
    if found := environ.get(_as_variable(name)):
        return found
    try:
        return _parse(config_file).get(name)
    except UsageError:
        return None


# ---- sources: (setting, raw value, place)
Entry = tuple[str, object, str]


def _read_file(path: Path) -> Iterator[Entry]:
    for name, value in _parse(path).items():
        yield _check_name(name, str(path), str, otherwise=EDIT), value, str(path)


def _read_environment(environ: Mapping[str, str]) -> Iterator[Entry]:
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES and environ[variable]:
            name = variable.removeprefix(PREFIX).lower()
            known = _check_name(name, "environment", _as_variable, otherwise=f"unset {variable}")
            yield known, environ[variable], variable


def _read_flags(flags: Mapping[str, object]) -> Iterator[Entry]:
    for name, value in flags.items():
        if value is not None:
            yield _check_name(name, "command line", _as_flag, otherwise="eaglelocal --help"), value, _as_flag(name)


def _parse(path: Path) -> dict[str, object]:
    try:
        return read_toml_file(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(str(error), hint=EDIT) from error


def _check_name(name: str, place: str, style: Callable[[str], str], *, otherwise: str) -> str:
    """Return the name if it is a setting, else raise UsageError; `style` writes a name as in its source.

    otherwise  the hint if no name is near
    """
    if name in READERS:
        return name
    near = closest_word(name, READERS)
    hint = f"did you mean {style(near)}?" if near else otherwise
    raise UsageError(f"{place}: unknown setting {style(name)}", hint=hint)


def _as_given(value: object) -> str:
    """Return the value as it was written; texts of a flag that can be repeated apart."""
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        return ", ".join(map(repr, value))
    return repr(value)


def _as_variable(name: str) -> str:
    return PREFIX + name.upper()


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")
