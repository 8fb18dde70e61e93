"""Every path on disk that eaglelocal uses, and nothing else.

Follows XDG on Linux and the platform's habit elsewhere. Folders are made by whoever writes into them.
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
    """Inflated models: can always be made again, so they live in the cache."""
    return cache_dir() / "generated"


def light_heads_dir() -> Path:
    """Copies of draft heads in fewer bits: can always be made again."""
    return cache_dir() / "heads"


def heads_dir() -> Path:
    """Imported draft heads, a folder for each kind of target."""
    return state_dir() / "heads"


def training_dir() -> Path:
    """Answers that heads learned from, and runs that were stopped; a folder for each target."""
    return state_dir() / "training"


def hub_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The model hub's own folder, shared with every other tool that uses it."""
    if environ.get("HF_HOME"):
        return _named(environ["HF_HOME"])
    return _named(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"


def hub_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's client keeps what it downloads."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return _named(named) if named else hub_home(environ) / "hub"


def hub_token_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `hf auth login` leaves its token."""
    named = environ.get("HF_TOKEN_PATH")
    return _named(named) if named else hub_home(environ) / "token"


def _named(text: str) -> Path:
    """As the hub's client reads its variables."""
    return Path(os.path.expandvars(os.path.expanduser(text)))  # Path.expanduser raises on a name that nobody has


def pulled_drafts_file() -> Path:
    """Which draft was fetched for which target."""
    return state_dir() / "pulled_drafts.json"


def history_file() -> Path:
    return state_dir() / "chat_history"


def question_history_file() -> Path:
    """The screen's; line mode's is history_file."""
    return state_dir() / "questions.jsonl"


def conversations_dir() -> Path:
    return state_dir() / "conversations"


def calibrations_dir() -> Path:
    """What decodes cost on this machine, as engines have learnt it."""
    return state_dir() / "calibrations"


def bandwidths_dir() -> Path:
    """How quickly machines read their memory, as it was measured; a file for each."""
    return state_dir() / "bandwidths"


def servers_dir() -> Path:
    """Servers that run on this machine, a file for each."""
    return state_dir() / "servers"


def crash_reports_dir() -> Path:
    """How engine processes ended that nobody stopped; a file for each, the newest few."""
    return state_dir() / "crashes"


def profiles_dir() -> Path:
    """`profiles/`: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).parent
    inside, beside = package / "profiles", package.parent / "profiles"
    return inside if inside.is_dir() else beside
