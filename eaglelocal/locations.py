"""The paths on disk that eaglelocal uses.

They follow XDG on Linux, and the conventions of other platforms. Code that writes a file creates its folder.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import platformdirs

from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_regular
from eaglelocal.errors import UsageError

APP = "eaglelocal"
OLLAMA_SERVICE_STORE = "/usr/share/ollama/.ollama/models"  # of Ollama as a service


def find_home() -> Path | None:
    """Return the user's home folder; None if it is not known, as for a user that a container makes up."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def suggest_path(name: str) -> str:
    """Return a path that the user can surely write, as a word of a command."""
    return shlex.quote(str((find_home() or Path.cwd()) / name))


def _own_dir(find: Callable[[str], str], variable: str) -> Path:
    """Return a folder of ours. Raises UsageError if neither its variable is set nor the home folder known."""
    try:
        return Path(find(APP))
    except RuntimeError:
        raise UsageError("your home folder is not known", hint=f"set HOME, or {variable}") from None


def config_dir() -> Path:
    return _own_dir(platformdirs.user_config_dir, "XDG_CONFIG_HOME")


def config_file() -> Path:
    return config_dir() / "config.toml"


def mcp_file() -> Path:
    """Return the file that lists tool servers."""
    return config_dir() / "mcp.json"


def allowed_tools_file() -> Path:
    """Return the file with the tools that the user always allows."""
    return state_dir() / "allowed_tools.json"


def state_dir() -> Path:
    return _own_dir(platformdirs.user_state_dir, "XDG_STATE_HOME")


def cache_dir() -> Path:
    return _own_dir(platformdirs.user_cache_dir, "XDG_CACHE_HOME")


def generated_models_dir() -> Path:
    """Return the folder of inflated models. They are reproducible, so it is in the cache."""
    return cache_dir() / "generated"


def parsed_profiles_dir() -> Path:
    """Return the folder of the catalog's files in a form that is read sooner. They are reproducible."""
    return cache_dir() / "profiles"


def light_heads_dir() -> Path:
    """Return the folder of quantized copies of draft heads. They are reproducible."""
    return cache_dir() / "heads"


def heads_dir() -> Path:
    """Return the folder of imported draft heads; one folder per kind of target."""
    return state_dir() / "heads"


def training_dir() -> Path:
    """Return the folder of training data of heads and of interrupted runs; one folder per target."""
    return state_dir() / "training"


def learned_dir() -> Path:
    """Return the folder of learned versions of draft heads; one folder for each pair of a target and a head."""
    return state_dir() / "learned"


def learning_dir() -> Path:
    """Return the folder of answers that heads learn from, and of learning in progress; one folder per target."""
    return state_dir() / "learning"


def lookups_dir() -> Path:
    """Return the folder of texts that lookups remember; one folder per vocabulary."""
    return state_dir() / "lookups"


def conversation_cells_dir() -> Path:
    """Return the folder of conversations whose caches are kept (`--cache-disk`); one folder per model and build."""
    return state_dir() / "cells"


def drift_dir() -> Path:
    """Return the folder of acceptance by kind of text; one file per target, of counts."""
    return state_dir() / "drift"


def own_certificate_dir() -> Path:
    """Return the folder of the certificate, and its key, that `serve --ssl auto` made."""
    return state_dir() / "certificate"


def trusted_certificates_dir() -> Path:
    """Return the folder of certificates that the user has confirmed, one for each address."""
    return state_dir() / "trusted"


def hub_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the model hub's own folder, shared with all other tools that use it."""
    if environ.get("HF_HOME"):
        return _expand(environ["HF_HOME"])
    return _expand(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"


def hub_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which the hub's client keeps downloads."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return _expand(named) if named else hub_home(environ) / "hub"


def hub_token_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file in which `hf auth login` stores its token."""
    named = environ.get("HF_TOKEN_PATH")
    return _expand(named) if named else hub_home(environ) / "token"


def lm_studio_dirs() -> tuple[Path, ...]:
    """Return the folders in which LM Studio keeps models, as far as they exist: now, and in earlier versions."""
    home = find_home()
    if home is None:
        return ()
    own = _read_pointer(home / ".lmstudio-home-pointer") or home / ".lmstudio"
    folders = (_read_download_folder(own / "settings.json"), own / "models", home / ".cache" / "lm-studio" / "models")
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None and folder.is_dir()))


def _read_pointer(file: Path) -> Path | None:
    try:
        text = read_regular(file).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text else None


def _read_download_folder(settings: Path) -> Path | None:
    """Return the folder that LM Studio's settings name; None if they name none or cannot be read."""
    try:
        content = read_json(read_regular(settings))
    except (OSError, ValueError):
        return None
    named = content.get("downloadsFolder") if isinstance(content, dict) else None
    return Path(named) if isinstance(named, str) and named else None


def ollama_dirs(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the stores of Ollama that exist: the one that OLLAMA_MODELS names, else the user's and the service's."""
    return tuple(store for store in ollama_store_paths(environ) if (store / "manifests").is_dir())


def ollama_store_paths(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the paths at which stores of Ollama may be."""
    named = environ.get("OLLAMA_MODELS")
    if named:
        return (_expand(named),)
    home = find_home()
    own = () if home is None else (home / ".ollama" / "models",)
    return (*own, Path(OLLAMA_SERVICE_STORE))


def _expand(text: str) -> Path:
    """Return a path with variables and `~` expanded, as the hub's client does."""
    return Path(os.path.expandvars(os.path.expanduser(text)))


def pulled_drafts_file() -> Path:
    """Return the file that records which draft was downloaded for which target."""
    return state_dir() / "pulled_drafts.json"


def pairs_lock_file() -> Path:
    """Return the file with the commits of repositories that were used."""
    return config_dir() / "pairs.lock"


def question_history_file() -> Path:
    return state_dir() / "questions.jsonl"


def conversations_dir() -> Path:
    return state_dir() / "conversations"


def calibrations_dir() -> Path:
    """Return the folder of decode costs that engines measured on this machine."""
    return state_dir() / "calibrations"


def bandwidths_dir() -> Path:
    """Return the folder of measured memory bandwidths; one file per machine."""
    return state_dir() / "bandwidths"


def servers_dir() -> Path:
    """Return the folder that lists the servers running on this machine; one file each."""
    return state_dir() / "servers"


def crash_reports_dir() -> Path:
    """Return the folder of crash reports of engine processes; one file each, only the newest are kept."""
    return state_dir() / "crashes"


def profiles_dir() -> Path:
    """Return `profiles/`: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).parent
    inside, beside = package / "profiles", package.parent / "profiles"
    return inside if inside.is_dir() else beside
