"""Every path on disk that eaglelocal uses, and nothing else.

Follows XDG on Linux and the platform's habit elsewhere. Folders are made by whoever writes into them.
"""

from __future__ import annotations

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


def servers_dir() -> Path:
    """Servers that run on this machine, a file for each."""
    return state_dir() / "servers"


def profiles_dir() -> Path:
    """`profiles/`: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).parent
    inside, beside = package / "profiles", package.parent / "profiles"
    return inside if inside.is_dir() else beside
