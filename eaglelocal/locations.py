"""The paths on disk that eaglelocal uses.

They follow XDG on Linux, and the conventions of other platforms. Code that writes a file creates its folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

APP = "eaglelocal"


def config_dir() -> Path:
    return Path(platformdirs.user_config_dir(APP))


def config_file() -> Path:
    return config_dir() / "config.toml"


def state_dir() -> Path:
    return Path(platformdirs.user_state_dir(APP))


def cache_dir() -> Path:
    return Path(platformdirs.user_cache_dir(APP))


def generated_models_dir() -> Path:
    """Return the folder of inflated models. They are reproducible, so it is in the cache."""
    return cache_dir() / "generated"


def light_heads_dir() -> Path:
    """Return the folder of quantized copies of draft heads. They are reproducible."""
    return cache_dir() / "heads"


def heads_dir() -> Path:
    """Return the folder of imported draft heads; one folder per kind of target."""
    return state_dir() / "heads"


def training_dir() -> Path:
    """Return the folder of training data of heads and of interrupted runs; one folder per target."""
    return state_dir() / "training"


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


def _expand(text: str) -> Path:
    """Return a path with variables and `~` expanded, as the hub's client does."""
    return Path(os.path.expandvars(os.path.expanduser(text)))  # Path.expanduser raises for an unknown user


def pulled_drafts_file() -> Path:
    """Return the file that records which draft was downloaded for which target."""
    return state_dir() / "pulled_drafts.json"


def history_file() -> Path:
    return state_dir() / "chat_history"


def question_history_file() -> Path:
    """Return the chat screen's history of questions; line mode uses history_file."""
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
