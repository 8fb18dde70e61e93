"""The user's settings, and the source of each: default < config file < environment < flag.

An unknown key, a wrong type or a value out of range is an error that names its place. An unset setting is None; the
code that uses it decides what that means.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eaglelocal.core.atomic_file import OWN_FILE, write_atomically
from eaglelocal.core.gpu_split import parse_split
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.plan import MAX_SLOTS
from eaglelocal.core.records import dataclass
from eaglelocal.core.rpc_hosts import parse_rpc_hosts
from eaglelocal.core.sampling import RANGES
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.core.toml_text import read_toml_file, set_text_key
from eaglelocal.core.user_paths import quote_path
from eaglelocal.core.utf8_text import decode_text
from eaglelocal.errors import ResourceError, UsageError

PREFIX = "EAGLELOCAL_"
DEFAULT = "default"
MAX_CACHE_DISK = 100_000.0  # GB
MAX_LOOKUP_MEMORY = 2_000_000  # tokens; the index in RAM takes up to 600 bytes for each
OWN_VARIABLES = frozenset({"TRACEBACK", "ENGINE_LOG", "API_KEY", "ATTENTION"})
# of flags for a single invocation, which the config file does not accept
FLAG_VARIABLES = frozenset({
    "AGAINST", "AGAINST_KEY_FILE", "AGAINST_MODEL", "ALL", "CATEGORY", "CONCURRENCY", "CONTINUE", "DRAFT_VOCAB",
    "EPOCHS", "FINGERPRINT", "FORCE", "FORMAT", "FROM", "GOAL", "HEADS", "IGNORE_EOS", "IMAGE", "JSON", "KIND",
    "LOSS", "MACHINE", "MEASURE", "NO_TRIAL", "NO_TUI", "ONCE", "ON_POLICY", "OUT", "PAIRS", "PIN", "PLAIN",
    "PRINT", "PROMPTS", "PRUNE", "QUANT", "RAM", "REPEATS", "REPORT", "SAVE", "SKIP", "STATE_NOISE", "SVG",
    "TARGET_REPO", "TINT", "TOKENS", "TORCH_DEVICE", "TYPE", "UNPIN", "UNROLL", "VERIFY", "WARM_UP", "WEB",
    "WORK", "YES",
    "CHECK", "DRAFT_METHOD", "DRAFT_REPO", "DRAFT_REVISION", "LOAD", "MIG", "QUEUE", "REVISION",
})  # fmt: skip
OTHER_VARIABLES = frozenset(PREFIX + name for name in OWN_VARIABLES | FLAG_VARIABLES)  # ours, but not settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The value of each setting; None means unset: chosen for this machine or model."""

    target: str | None = None
    url: str | None = None  # of a server to use instead of an engine of its own; "none": never use one
    mmproj: str = "auto"  # projector that lets the target read images: auto, none, or a file
    draft: str = "auto"
    draft_type: str = "auto"
    lora: tuple[str, ...] = ()  # LoRA adapters of the target: FILE or FILE:SCALE
    spec: str | int = "auto"  # auto, off, pid, or a number of draft tokens
    threads: int | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None  # layers whose experts stay in RAM
    device: str | None = None
    split: str = "layer"
    rpc: tuple[str, ...] = ()  # rpc-servers of llama.cpp that hold layers, as HOST:PORT
    kv_type: str = "f16"
    flash_attn: str = "auto"
    cache_ram: int | None = None  # MiB; None: by free memory
    lookup_memory: int = 0  # tokens of each key's texts that are kept on disk, to draft from
    cache_disk: float = 0.0  # GB on disk for the caches of conversations
    learn: bool = False  # keep answers, and let the head learn from them
    learn_gb: float = 1.0  # of answers that are kept
    learn_days: float = 30.0  # after which an answer is dropped
    learn_after: float = 60.0  # seconds without a request, until learning begins
    ctx: int | None = None
    parallel: int | None = None
    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    max_tokens: int | None = None
    seed: int | None = None
    system: str | None = None
    colour: str = "auto"
    ssl: str = "off"  # off, or auto: a certificate of our own
    ssl_cert: str | None = None
    ssl_key: str | None = None
    host: str = "127.0.0.1"
    port: int = 8421
    web_port: int = 8422  # of the monitor in a browser
    models: tuple[str, ...] = ()  # models that a server loads on request, and folders of models
    alias: tuple[str, ...] = ()  # more names of the first model of a server; "*": any name
    api_key_file: str | None = None
    shared_prefix: tuple[str, ...] = ()  # files of system prompts whose beginnings the keys share in caches
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_waiting: int = 64
    request_timeout: float = 3600.0  # seconds
    max_loaded: int = 0  # models at once; 0: as many as fit
    idle_unload: float = 0.0  # seconds; 0: never
    drain: float = 30.0  # seconds
    log: str = "text"
    theme: str = "dark"  # of screens; terminal: the terminal's own colours
    glyphs: str = "auto"  # auto: ascii unless the locale is UTF-8
    figures: bool = True  # a line of figures below each answer of a chat
    keys: tuple[tuple[str, str], ...] = ()  # of screens: (action, comma-separated keys), which replace the defaults
    set_by: tuple[tuple[str, str], ...] = ()  # (setting, place) of every setting that was set

    @classmethod
    def load(cls, flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path) -> Settings:
        """Read all sources and return the settings; a flag that is None was not given. Raises UsageError."""
        values: dict[str, Any] = {}
        places: dict[str, str] = {}
        for name, value, place in (*_read_file(config_file), *_read_environment(environ), *_read_flags(flags)):
            try:
                values[name], places[name] = READERS[name](value), place
            except ValueError as error:
                subject = place if place == _as_flag(name) else f"{place}: {name}"
                hint = f"unset {place}" if place.startswith(PREFIX) else _suggest_edit(config_file)
                if place == _as_flag(name):
                    default = getattr(cls(), name)
                    usual = f"{default:g}" if isinstance(default, float) else default
                    hint = f"{place} {usual}" if isinstance(default, str | int | float) else f"leave {place} out"
                raise UsageError(f"{subject} must be {error}, not {value!r}", hint=hint) from None
        return cls(**values, set_by=tuple(places.items()))

    def is_set(self, name: str) -> bool:
        """Return whether any source set this setting, even to its default."""
        return any(setting == name for setting, _ in self.set_by)

    @property
    def model_folders(self) -> tuple[str, ...]:
        """Return the folders among `models`; they are written as paths."""
        paths = (one for one in self.models if one.startswith(("/", "~", "./", "../")))
        return tuple(path for path in paths if os.path.isdir(os.path.expanduser(path)))

    def origins(self) -> Mapping[str, str]:
        """Return the source of each setting: `default`, the config file's path, the variable or the flag."""
        return MappingProxyType(dict.fromkeys(READERS, DEFAULT) | dict(self.set_by))


def write_setting(config_file: Path, name: str, value: str) -> None:
    """Set one setting in the config file, which is made if it is missing; the rest of it stays as it is.

    Raises UsageError if it cannot be changed by itself, ResourceError if the file cannot be written.
    """
    path = config_file.resolve()  # a link to a file elsewhere stays a link
    try:
        exists = path.exists()
        content = decode_text(read_regular(path)) if exists else ""
        mode = path.stat().st_mode & 0o777 if exists else OWN_FILE
        write_atomically(path, set_text_key(content, name, value), mode=mode)
    except OSError as problem:
        raise ResourceError(
            f"cannot write {path}: {problem.strerror}", hint=f"ls -ld {quote_path(path.parent)}"
        ) from problem
    except ValueError as problem:
        raise UsageError(f"{path} was not changed: {problem}", hint=f"write {name} = {value!r} yourself") from problem


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
        yield _check_name(name, str(path), _as_key, otherwise=_suggest_edit(path)), value, str(path)


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
        raise UsageError(str(error)) from error


def _check_name(name: str, place: str, style: Callable[[str], str], *, otherwise: str) -> str:
    """Return the name if it is a setting, else raise UsageError; `style` writes a name as in its source.

    otherwise  the hint if no name is near
    """
    if name in READERS:
        return name
    near = difflib.get_close_matches(name, READERS, n=1)
    hint = f"did you mean {style(near[0])}?" if near else otherwise
    raise UsageError(f"{place}: unknown setting {style(name)}", hint=hint)


def _suggest_edit(path: Path) -> str:
    return f"${{EDITOR:-vi}} {quote_path(path)}"


def _as_key(name: str) -> str:
    return name


def _as_variable(name: str) -> str:
    return PREFIX + name.upper()


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# ---- readers: raw value -> value; the text of a ValueError says what the value must be
Reader = Callable[[object], object]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _prose(value: object) -> str:
    """Read a text for the model. Surrogates are joined to characters here; texts that name files keep them."""
    return join_surrogates(_text(value))


def _list(value: object) -> tuple[str, ...]:
    """Read a list of texts, or one text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of texts, or one text with commas")
    return tuple(part.strip() for part in parts if part.strip())


def _files(value: object) -> tuple[str, ...]:
    """Read a list of paths. An empty one, such as that of an unset variable, is an error: it names no file."""
    if isinstance(value, list | tuple) and "" in value:
        raise ValueError("the path of a file")
    return _list(value)


def _boolean(value: object) -> bool:
    known = {"true": True, "false": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in known:
        raise ValueError("true or false")
    return known[value]


def _keys(value: object) -> tuple[tuple[str, str], ...]:
    """Read a table of texts, or `action=key,key action=key`."""
    if isinstance(value, str):
        value = {action: keys for action, _, keys in (part.partition("=") for part in value.split())}
    if not isinstance(value, dict) or not all(isinstance(keys, str) and keys for keys in value.values()):
        raise ValueError('a table of actions and keys, such as quit = "q,ctrl+q"')
    return tuple(value.items())


def _choice(*names: str) -> Reader:
    def read(value: object) -> str:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return str(value)

    return read


def _split(value: object) -> str:
    text = _text(value).replace(" ", "")
    parse_split(text)
    return text


def _rpc(value: object) -> tuple[str, ...]:
    return parse_rpc_hosts(",".join(map(str, value)) if isinstance(value, list | tuple) else _text(value))


def _whole(low: float, high: float | None = None) -> Reader:
    what = f"a whole number of at least {low:.0f}" if high is None else f"a whole number from {low:.0f} to {high:.0f}"

    def read(value: object) -> int:
        number = _as_int(value)
        if number is None or number < low or (high is not None and number > high):
            raise ValueError(what)
        return number

    return read


def _number(low: float, high: float) -> Reader:
    def read(value: object) -> float:
        number = _as_float(value)
        if number is None or not low <= number <= high:  # NaN fails too
            raise ValueError(f"a number from {low:g} to {high:g}")
        return number

    return read


def _or(word: str, meaning: object, reader: Reader) -> Reader:
    """Return a reader that returns `meaning` for the word, and passes other values to `reader`."""

    def read(value: object) -> object:
        if value == word:
            return meaning
        try:
            return reader(value)
        except ValueError as error:
            raise ValueError(f"{word} or {error}") from None

    return read


def _as_int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "target": _text,
        "url": _text,
        "mmproj": _text,
        "draft": _text,
        "lora": _files,
        "draft_type": _choice("auto", "q4_0", "q8_0", "file"),
        "spec": _or("auto", "auto", _or("off", "off", _or("pid", "pid", _whole(0)))),
        "threads": _or("auto", None, _whole(1)),
        "gpu_layers": _or("auto", None, _whole(0)),
        "n_cpu_moe": _or("auto", None, _whole(0)),
        "device": _text,
        "split": _split,
        "rpc": _rpc,
        "kv_type": _choice("f16", "q8_0", "q4_0"),
        "flash_attn": _choice("auto", "on", "off"),
        "cache_ram": _or("auto", None, _whole(0)),
        "lookup_memory": _or("off", 0, _whole(0, MAX_LOOKUP_MEMORY)),
        "cache_disk": _or("off", 0.0, _number(0.0, MAX_CACHE_DISK)),
        "learn": _boolean,
        "learn_gb": _number(0.001, 10_000),
        "learn_days": _number(1, 3650),
        "learn_after": _number(1, 86_400),
        "ctx": _or("auto", None, _whole(1)),
        "parallel": _or("auto", None, _whole(1, MAX_SLOTS)),
        "temperature": _number(*RANGES["temperature"]),
        "top_k": _whole(*RANGES["top_k"]),
        "top_p": _number(*RANGES["top_p"]),
        "min_p": _number(*RANGES["min_p"]),
        "max_tokens": _whole(1, RANGES["max_tokens"][1]),
        "seed": _whole(0, 2**32 - 1),
        "system": _prose,
        "colour": _choice("auto", "always", "never"),
        "host": _text,
        "ssl": _choice("off", "auto"),
        "ssl_cert": _text,
        "ssl_key": _text,
        "port": _whole(0, 65535),
        "web_port": _whole(0, 65535),
        "models": _list,
        "alias": _list,
        "api_key_file": _text,
        "shared_prefix": _files,
        "allowed_hosts": _list,
        "cors_origins": _list,
        "max_waiting": _whole(0, 10_000),
        "request_timeout": _number(1, 86_400),
        "max_loaded": _whole(0, 64),
        "idle_unload": _number(0, 31_536_000),
        "drain": _number(0, 3600),
        "log": _choice("text", "json"),
        "theme": _choice("dark", "light", "contrast", "terminal"),
        "glyphs": _choice("auto", "unicode", "ascii"),
        "figures": _boolean,
        "keys": _keys,
    }
)
