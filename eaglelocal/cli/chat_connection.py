"""Choose the model behind a chat: a running server, or an engine of its own.

`--url URL` joins that server. Without --target, a running eaglelocal server on this machine that generates text
is joined, so that no second copy of a model is loaded; one that is still loading is waited for. If the environment or
the config file names a target, only a server of that model is joined. Flags that only
an engine of one's own supports (--threads, --draft ...) are an error with --url, and without it prevent joining;
the same settings from variables or the config file do not. With --url, --target names one of the server's models.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from eaglelocal.cli.flags import KEEPING, MACHINE
from eaglelocal.cli.load_model import is_flag
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.client.running_servers import RunningServer

TEMPORARY_STATES = ("loading", "restarting")
LOADING_S, POLL_S = 300.0, 0.2
RESTART_S = 600.0  # for which a question waits for a server that was ended, and may come again
NO_SERVER = "none"  # value of --url: an engine of one's own, whatever runs
OUR_KEY, OPENAI_KEY = "EAGLELOCAL_API_KEY", "OPENAI_API_KEY"
ENGINE_SETTINGS = ("mmproj", "lora", "draft", "draft_type", "parallel", *MACHINE, *KEEPING)


def join_running_server(settings: Settings, output: MessageOutput) -> ActiveModel | None:
    """Join a server, show which one, and return its model; None if the chat needs an engine of its own.

    Raises UsageError if the flags contradict --url or its server generates no text, and the client's errors.
    """
    if settings.url == NO_SERVER:
        return None
    flags = find_engine_flags(settings)
    named = settings.target if is_flag(settings, "target") else None
    if settings.url is not None:
        if flags:
            what = f"{flags[0]} needs an engine of your own, but {settings.url} has its own engine"
            raise UsageError(what, hint=f"--url {NO_SERVER}")
        return join_server(settings.url, output, model=named or "")
    if named is not None:
        mention_server(named, output)
        return None
    for server in find_ready_servers(output, target=settings.target, patience_s=0 if flags else LOADING_S):
        if flags:
            output.note(f"not joining {server.url}: {flags[0]} needs an engine of its own")
            return None
        if (model := connect(server.url, server.api_key, output)) is not None:
            mention_others(server, output)
            return model
        output.note(f"not joining {server.url}: it does not generate text")
    return None


def mention_server(target: str, output: MessageOutput) -> None:
    """Point out a running server that has this target loaded, before it is loaded a second time."""
    from eaglelocal.client.running_servers import find_running_servers

    for server in find_running_servers():
        if server.runs(target):
            output.note(f"{server.url} already runs {server.target}: `eaglelocal chat --url {server.url}` saves memory")
            return


def mention_others(joined: RunningServer, output: MessageOutput) -> None:
    """Name the older servers, which could be joined instead."""
    from eaglelocal.client.running_servers import find_running_servers

    for other in find_running_servers():
        if other.started_at < joined.started_at:
            output.note(clean_line(f"{other.url} runs {other.target}: --url {other.url} joins it instead"))


def find_engine_flags(settings: Settings) -> list[str]:
    """Return the flags on the command line that a server cannot obey."""
    return [settings.origins()[name] for name in ENGINE_SETTINGS if is_flag(settings, name)]


def choose_spec(settings: Settings, model: ActiveModel) -> Spec | None:
    """Return how requests to a server ask for drafting; None: as the server was started.

    Raises UsageError if --spec is given and the server does not take it.
    """
    if not is_flag(settings, "spec"):
        return None
    if not model.takes_spec:
        raise UsageError("only eaglelocal servers support --spec", hint="leave it out: the server decides")
    return parse_spec(settings.spec)


def find_api_key(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a server's key: as announced by a local eaglelocal server, else of OUR_KEY or OPENAI_KEY, else ""."""
    from eaglelocal.client.running_servers import find_running_servers

    announced = next((server.api_key for server in find_running_servers() if server.is_at(url)), "")
    return announced or environ.get(OUR_KEY) or environ.get(OPENAI_KEY) or ""


def find_ready_servers(
    output: MessageOutput, *, target: str | None = None, patience_s: float
) -> Iterator[RunningServer]:
    """Return the running eaglelocal servers that are ready, newest first; report why others are skipped.

    target  only servers of this model; None: of any
    """
    from eaglelocal.client.running_servers import find_running_servers, request_state

    for server in find_running_servers():
        if target is None or server.runs(target):
            read_state, what = partial(request_state, server), f"waiting for {server.url}"
            state = wait_for_state(read_state, what, output, patience_s=patience_s)
            if state == "ready":
                yield server
            else:
                output.note(f"not joining {server.url}: {state}")


def wait_for_state(read_state: Callable[[], str], what: str, output: MessageOutput, *, patience_s: float) -> str:
    """Wait up to `patience_s` seconds while the state is a temporary one, and return the state.

    Waiting for a server that loads avoids a second copy of its model in memory.
    """
    state, give_up_at = read_state(), time.monotonic() + patience_s
    if state in TEMPORARY_STATES and patience_s:
        output.note(f"{what}: {state}")
    while state in TEMPORARY_STATES and time.monotonic() < give_up_at:
        time.sleep(POLL_S)
        state = read_state()
    return state


def join_server(url: str, output: MessageOutput, *, model: str = "") -> ActiveModel:
    """Connect to a server, as `connect`. Raises UsageError if the model generates no text, and the client's errors."""
    joined = connect(url, find_api_key(url), output, model=model)
    if joined is None:
        raise UsageError(f"{url} does not generate text", hint=f"--url {NO_SERVER}")
    return joined


def connect(url: str, api_key: str, output: MessageOutput, *, model: str = "") -> ActiveModel | None:
    """Connect to a server and return its model, "": its first; None if the model generates no text."""
    from eaglelocal.client.http_client import HttpClient

    client = HttpClient(url, api_key=api_key, model=model, reuses_prompts=True, wait_s=RESTART_S)
    info = client.start()
    if info.task is not ModelTask.TEXT:
        client.close()
        return None
    output.note(clean_line(f"joined {url}: {info.target}"))
    return ActiveModel(client, None, info, takes_spec=client.takes_spec, read_info=lambda: client.info)
