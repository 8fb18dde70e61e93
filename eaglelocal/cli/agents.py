"""The programs that `eaglelocal launch` runs, and how each gets a server: by environment and arguments alone.

Nothing is written into their configuration. Sources: their documentation, and docs/serving.md for what was tested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from eaglelocal.core.records import dataclass
from eaglelocal.core.surrogates import make_printable
from eaglelocal.core.toml_text import write_text_value
from eaglelocal.errors import UsageError

KEY_VARIABLE = "EAGLELOCAL_API_KEY"
NO_KEY = "unused"  # programs insist on one
SUBSTITUTED = re.compile("[{}]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that answers: `url` without /v1, the model's name in requests, its context in tokens.

    Raises UsageError for an address or a model that a program's configuration cannot hold. The server chose its model's
    name, and opencode would put the content of ~/.ssh/id_rsa in the place of `{file:~/.ssh/id_rsa}`.
    """

    url: str
    model: str
    n_ctx: int
    api_key: str = ""

    def __post_init__(self) -> None:
        for what, text in (("address", self.url), ("model", self.model)):
            if not text.isprintable() or SUBSTITUTED.search(text):
                reason = "it holds braces or control characters"
                raise UsageError(f"no program gets the {what} {make_printable(text)!r}: {reason}")

    @property
    def key(self) -> str:
        return self.api_key or NO_KEY


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments and variables of a program, besides the user's own arguments.

    environment  variables to set; "" unsets one
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Agent:
    """A program: its command, how to install it, the tokens of context that its own instructions need, its setup."""

    command: str
    install: str
    min_ctx: int
    set_up: Callable[[Endpoint], Setup]


def set_up_claude(server: Endpoint) -> Setup:
    roles = ("OPUS", "SONNET", "HAIKU")
    return Setup(
        environment={
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": server.key,
            "ANTHROPIC_API_KEY": "",  # it would be preferred
            "ANTHROPIC_MODEL": server.model,
            **{f"ANTHROPIC_DEFAULT_{role}_MODEL": server.model for role in roles},
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    )


def set_up_codex(server: Endpoint) -> Setup:
    values = {
        "model": server.model,
        "model_provider": "eaglelocal",
        "model_providers.eaglelocal.name": "eaglelocal",
        "model_providers.eaglelocal.base_url": f"{server.url}/v1",
        "model_providers.eaglelocal.wire_api": "responses",
        "model_providers.eaglelocal.env_key": KEY_VARIABLE,
    }
    texts = {name: write_text_value(text) for name, text in values.items()}
    settings = [*texts.items(), ("model_context_window", server.n_ctx)]
    arguments = [argument for name, value in settings for argument in ("-c", f"{name}={value}")]
    return Setup(arguments, {KEY_VARIABLE: server.key})


def set_up_opencode(server: Endpoint) -> Setup:
    if re.search(r'[{}"\\]', server.key):  # it is put into the text of the configuration
        raise UsageError("opencode reads no key with braces, quotes or backslashes", hint="give the server another key")
    limit = {"context": server.n_ctx, "output": server.n_ctx // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "eaglelocal",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {server.model: {"name": server.model, "limit": limit}},
    }
    config = {"provider": {"eaglelocal": provider}, "model": f"eaglelocal/{server.model}"}
    return Setup(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config), KEY_VARIABLE: server.key})


def set_up_aider(server: Endpoint) -> Setup:
    environment = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": server.key}
    return Setup(("--model", f"openai/{server.model}"), environment)


AGENTS = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", 40_960, set_up_claude),
    "codex": Agent("codex", "npm install -g @openai/codex", 32_768, set_up_codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", 32_768, set_up_opencode),
    "aider": Agent("aider", "pip install aider-chat", 16_384, set_up_aider),
}
