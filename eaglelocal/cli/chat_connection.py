"""The choice of what answers a chat: a running server, or an engine of its own.

`--url URL` joins that server. Without --target, a running eaglelocal server on this machine that generates text
is joined, so that no second copy of a model is loaded; one that is still loading is waited for. Flags that only
an engine of one's own can obey (--threads, --draft ...) are an error with --url, and without it prevent joining;
the same settings from variables or the config file do not. With --url, --target names one of the server's models.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.client.running_servers import RunningServer

PASSING = ("loading", "restarting")  # temporary states
LOADING_S, POLL_S = 300.0, 0.2
NO_SERVER = "none"  # value of --url: an engine of one's own, whatever runs
OUR_KEY, OPENAI_KEY = "EAGLELOCAL_API_KEY", "OPENAI_API_KEY"
OF_AN_ENGINE = (
    *("mmproj", "draft", "draft_type", "threads", "gpu_layers", "n_cpu_moe", "device"),
    *("split", "kv_type", "flash_attn", "cache_ram", "ctx", "parallel"),
)


def joined_model(settings: Settings, voice: MessageOutput) -> ActiveModel | None:
    """Join a server, say which, and return its model; None if the chat needs an engine of its own.

    Raises UsageError if the flags contradict --url or its server generates no text, and the client's errors.
    """
    flags = engine_flags(settings)
    if settings.url is not None and settings.url != NO_SERVER:
        if flags:
            hint = f"leave out {flags[0]}, or --url {NO_SERVER} for an engine of your own"
            raise UsageError(f"{flags[0]} is for an engine of your own, and {settings.url} has its own", hint=hint)
        model = join(settings.url, key_of(settings.url, os.environ), settings, voice)
        if model is None:
            hint = f"--url {NO_SERVER} for an engine of your own"
            raise UsageError(f"{settings.url} writes no text", hint=hint)
        return model
    if settings.url == NO_SERVER:
        return None
    if settings.target is not None:
        name_server_of(settings.target, voice)
        return None
    for server in ready_servers(voice, patience_s=0 if flags else LOADING_S):
        if flags:
            voice.note(f"not joining {server.url}: {flags[0]} asks for an engine of its own")
            return None
        if (model := join(server.url, server.api_key, settings, voice)) is not None:
            return model
        voice.note(f"not joining {server.url}: it writes no text")
    return None


def name_server_of(target: str, voice: MessageOutput) -> None:
    """Point out a running server that has this target loaded, before it is loaded a second time."""
    from eaglelocal.client.running_servers import find_running_servers

    for server in find_running_servers():
        if server.target == target or server.target.startswith(f"{target}:"):  # named without quantization
            voice.note(f"{server.url} has {server.target} too: without --target it answers, and memory is spared")
            return


def engine_flags(settings: Settings) -> list[str]:
    """Return the flags on the command line that a server cannot obey."""
    return [place for name in OF_AN_ENGINE if (place := settings.origins()[name]).startswith("--")]


def spec_of(settings: Settings, model: ActiveModel) -> Spec | None:
    """Return how requests to a server ask for drafting; None: as the server was started.

    Raises UsageError if --spec is given and the server does not take it.
    """
    origin = settings.origins()["spec"]
    if model.takes_spec:
        return parse_spec(settings.spec) if origin.startswith("--") else None
    if origin.startswith("--"):
        raise UsageError("--spec is understood by servers of ours only", hint="leave it out: the server decides")
    return None


def key_of(url: str, environ: Mapping[str, str]) -> str:
    """Return a server's key: as announced by a local eaglelocal server, else of OUR_KEY or OPENAI_KEY, else ""."""
    from eaglelocal.client.running_servers import find_running_servers

    announced = next((server.api_key for server in find_running_servers() if server.is_at(url)), "")
    return announced or environ.get(OUR_KEY) or environ.get(OPENAI_KEY) or ""


def ready_servers(voice: MessageOutput, *, patience_s: float) -> Iterator[RunningServer]:
    """Return the running eaglelocal servers that are ready, newest first; report why others are skipped."""
    from eaglelocal.client.running_servers import find_running_servers, request_state

    def settled(server: RunningServer) -> str:
        return settled_state(partial(request_state, server), f"waiting for {server.url}", voice, patience_s=patience_s)

    return ready_of(((server, settled(server)) for server in find_running_servers()), voice)


def settled_state(read_state: Callable[[], str], what: str, voice: MessageOutput, *, patience_s: float) -> str:
    """Wait up to `patience_s` seconds while the state is a temporary one, and return the state.

    Waiting for a server that loads avoids a second copy of its model in memory.
    """
    state, give_up_at = read_state(), time.monotonic() + patience_s
    if state in PASSING and patience_s:
        voice.note(f"{what}: {state}")
    while state in PASSING and time.monotonic() < give_up_at:
        time.sleep(POLL_S)
        state = read_state()
    return state


def ready_of(servers: Iterable[tuple[RunningServer, str]], voice: MessageOutput) -> Iterator[RunningServer]:
    for server, state in servers:
        if state == "ready":
            yield server
        else:
            voice.note(f"not joining {server.url}: {state}")


def join(url: str, api_key: str, settings: Settings, voice: MessageOutput) -> ActiveModel | None:
    """Connect to a server and return its model; None if the model generates no text."""
    from eaglelocal.client.http_client import HttpClient

    named = settings.origins()["target"].startswith("--")  # a target from elsewhere names a file of this machine
    model = settings.target if named and settings.target else ""
    client = HttpClient(url, api_key=api_key, model=model, reuses_prompts=True)
    info = client.start()
    if info.task is not ModelTask.TEXT:
        client.close()
        return None
    voice.note(f"joined {url}: {info.target}")
    return ActiveModel(client, None, info, takes_spec=client.takes_spec)
