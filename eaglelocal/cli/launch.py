"""`eaglelocal launch`: run a coding agent with a model of this machine, joined or started for it.

The program's own configuration stays as it is: it gets variables and arguments. A server that was started for it ends
with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.load_model import is_flag, load_settings
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.own_files import append_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import make_printable
from eaglelocal.core.toml_text import write_text_value
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EngineError, ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.client.running_servers import RunningServer
    from eaglelocal.settings import Settings

# ---- agents: the programs that `eaglelocal launch` runs, and how each gets a server: by environment and arguments
# alone
#
# Nothing is written into their configuration. Sources: their documentation, and docs/serving.md for what was tested.
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


# ---- launch
START_S, END_S, POLL_S = 600.0, 45.0, 0.2
LOG = "launch.log"
LOG_TAIL = 5  # lines


@flags.takes("target", "url", "ctx", before="shows")
def launch(
    context: typer.Context,
    program: Annotated[str, typer.Argument(metavar="|".join(AGENTS), help="Program to run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Its own arguments.", show_default=False)
    ] = None,
    shows: Annotated[bool, typer.Option("--print", help="Show what would be run, and run nothing.")] = False,
) -> None:
    """Run a coding agent with a local model.

    It joins a running server that has enough context, or starts one that ends with the agent.

    \b
    eaglelocal launch claude
    eaglelocal launch codex --target ./Qwen3-Coder-30B-A3B-Q4_K_M.gguf
    eaglelocal launch aider --print
    eaglelocal launch opencode -- run "What does this project do?"
    """
    settings, output = load_settings(context.params), standard_output()
    if program not in AGENTS:
        raise UsageError(f"{program!r} is none of the programs", hint="one of " + ", ".join(AGENTS))
    agent = AGENTS[program]
    path = shutil.which(agent.command)
    if path is None and not shows:
        raise UsageError(f"{agent.command} is not installed", hint=f"`{agent.install}`")
    with find_server(agent, settings, output, starts=not shows) as server:
        setup = agent.set_up(server)
        command = [path or agent.command, *setup.arguments, *(arguments or [])]
        if shows:
            output.data(format_command(setup, command))
            return
        raise typer.Exit(run_agent(command, setup.environment))


def format_command(setup: Setup, command: list[str]) -> str:
    """Return the command with its variables, as a shell takes it."""
    unset = [word for name, value in setup.environment.items() if not value for word in ("-u", name)]
    variables = [f"{name}={value}" for name, value in setup.environment.items() if value]
    return shlex.join([*(["env", *unset, *variables] if setup.environment else []), *command])


def run_agent(command: list[str], environment: Mapping[str, str]) -> int:
    """Run the program in this terminal until it ends; return its exit status. Ctrl-C is the program's."""
    both = {**os.environ, **environment}
    variables = {name: value for name, value in both.items() if value or name not in environment}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, env=variables, preexec_fn=lambda: signal.signal(signal.SIGINT, before))
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


# ---- the server
@contextlib.contextmanager
def find_server(agent: Agent, settings: Settings, output: Output, *, starts: bool) -> Iterator[Endpoint]:
    """Yield a server for the agent: --url's, a running one, or a new one that ends with the block.

    starts  False: only describe what would be started

    Raises UsageError if the server's context is too small.
    """
    from eaglelocal.cli.chat_connection import NO_SERVER, find_api_key, find_ready_servers

    if settings.url not in (None, NO_SERVER):
        yield describe(str(settings.url), find_api_key(str(settings.url)), agent)
        return
    target = settings.target if is_flag(settings, "target") else None
    running = () if settings.url == NO_SERVER else find_ready_servers(output, target=target, patience_s=START_S)
    for server in running:
        endpoint = describe(server.url, server.api_key, agent)
        output.message(f"joined {server.url}: {server.target}, context {endpoint.n_ctx}")
        yield endpoint
        return
    enough = 0 if is_flag(settings, "ctx") else agent.min_ctx  # a context for every model may be too short for an agent
    n_ctx = max(settings.ctx or agent.min_ctx, enough)
    if not starts:
        why = "" if settings.url == NO_SERVER else "no server is running: "
        output.message(f"{why}`eaglelocal launch` would start one")
        yield Endpoint(f"http://{settings.host}:{settings.port}", "default", n_ctx)
        return
    with start_server(settings, n_ctx, output) as server:
        yield describe(server.url, server.api_key, agent)


def describe(url: str, api_key: str, agent: Agent) -> Endpoint:
    """Return a running server, with its model. Raises UsageError if its context does not suffice."""
    from eaglelocal.client.http_connection import KeepAliveConnection
    from eaglelocal.client.http_server import choose_model, read_info

    with contextlib.closing(KeepAliveConnection(url, api_key=api_key)) as connection:
        entry = choose_model(connection.get("/v1/models").mapping(), "", connection.url)
        n_ctx = read_info(entry, {}, connection.url).n_ctx
        if 0 < n_ctx < agent.min_ctx:
            what = f"{agent.command} needs a context of {agent.min_ctx} tokens, and {connection.url} has {n_ctx}"
            raise UsageError(what, hint=f"--url none --target MODEL --ctx {agent.min_ctx}")
        return Endpoint(connection.url, str(entry["id"]), n_ctx or agent.min_ctx, api_key)


@contextlib.contextmanager
def start_server(settings: Settings, n_ctx: int, output: Output) -> Iterator[RunningServer]:
    """Start a server on a free port, and stop it at the end. Raises EngineError with its last words if it fails."""
    target = ["--target", settings.target] if settings.target else []
    command = [sys.executable, "-m", "eaglelocal", "serve", "--no-tui", "--port", "0", "--ctx", str(n_ctx), *target]
    log = locations.state_dir() / LOG
    with open_log(log, command) as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stream, start_new_session=True)
    try:
        yield wait_until_ready(process, log, output)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def open_log(log: Path, command: Sequence[str]) -> BufferedWriter:
    """Return the server's log, with its command. Raises ResourceError: in the same folder, the server is found."""
    try:
        write_atomically(log, os.fsencode(f"{shlex.join(command)}\n"))
        return append_own(log)
    except OSError as problem:
        message = f"no server can be started: {log} cannot be written: {problem.strerror}"
        raise ResourceError(message, hint="--url URL joins a server") from problem


def wait_until_ready(process: subprocess.Popen[bytes], log: Path, output: Output) -> RunningServer:
    from eaglelocal.client.running_servers import find_running_servers, request_state

    output.message(f"starting a server; its log is {log}")
    give_up_at = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < give_up_at:
        for server in find_running_servers():
            if server.pid == process.pid and request_state(server) == "ready":
                return server
        time.sleep(POLL_S)
    lines = read_own(log).decode(errors="replace").split("\n")[1:]
    for line in filter(None, lines[-LOG_TAIL - 1 :]):
        output.message(line)
    raise EngineError("the server did not start", hint=f"less {quote_path(log)}")
