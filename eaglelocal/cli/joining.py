"""Where a chat is answered: by a server that runs, or by an engine of its own.

`--url URL` joins that server. Without --target a server of ours on this machine that answers in text is joined,
rather than that a second copy of a model is loaded; one that is still loading is waited for. What only an engine of
one's own can obey (--threads, --draft ...) contradicts --url, and without it asks for an engine of one's own; variables
and the config file do not. With --url, --target names one of the server's models.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from eaglelocal.core.request import Spec, parse_spec
from eaglelocal.core.task import Task
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.talk.session import Model
from eaglelocal.talk.voice import Voice

if TYPE_CHECKING:
    from eaglelocal.client.running import RunningServer

PASSING = ("loading", "restarting")  # states
LOADING_S, POLL_S = 300.0, 0.2
NO_SERVER = "none"  # as --url: an engine of one's own, whatever runs
OUR_KEY, OPENAI_KEY = "EAGLELOCAL_API_KEY", "OPENAI_API_KEY"
OF_AN_ENGINE = (
    *("mmproj", "draft", "draft_type", "threads", "gpu_layers", "n_cpu_moe", "device"),
    *("split", "kv_type", "flash_attn", "cache_ram", "ctx", "parallel"),
)


def joined_model(settings: Settings, voice: Voice) -> Model | None:
    """A server's model, and said which; None: an engine of one's own is wanted. Raises what keeps from joining."""
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
            voice.aside(f"not joining {server.url}: {flags[0]} asks for an engine of its own")
            return None
        if (model := join(server.url, server.api_key, settings, voice)) is not None:
            return model
        voice.aside(f"not joining {server.url}: it writes no text")
    return None


def name_server_of(target: str, voice: Voice) -> None:
    """Say of a server that has this very model that it would answer, before the model is loaded a second time."""
    from eaglelocal.client.running import running_servers

    for server in running_servers():
        if server.target == target or server.target.startswith(f"{target}:"):  # the quantization was left open
            voice.aside(f"{server.url} has {server.target} too: without --target it answers, and memory is spared")
            return


def engine_flags(settings: Settings) -> list[str]:
    """Flags on the command line that a server cannot obey."""
    return [place for name in OF_AN_ENGINE if (place := settings.origins()[name]).startswith("--")]


def spec_of(settings: Settings, model: Model) -> Spec | None:
    """What requests to a server say about drafting; None: as the server was started. Raises UsageError."""
    origin = settings.origins()["spec"]
    if model.takes_spec:
        return parse_spec(settings.spec) if origin.startswith("--") else None
    if origin.startswith("--"):
        raise UsageError("--spec is understood by servers of ours only", hint="leave it out: the server decides")
    return None


def key_of(url: str, environ: Mapping[str, str]) -> str:
    """What a server of ours announced, else ours from the environment, else the one for OpenAI's clients."""
    from eaglelocal.client.running import running_servers

    announced = next((server.api_key for server in running_servers() if server.is_at(url)), "")
    return announced or environ.get(OUR_KEY) or environ.get(OPENAI_KEY) or ""


def ready_servers(voice: Voice, *, patience_s: float) -> Iterator[RunningServer]:
    """The servers of ours that can answer, the newest first; says of those before them why they cannot."""
    from eaglelocal.client.running import running_servers, state_of

    def settled(server: RunningServer) -> str:
        return settled_state(partial(state_of, server), f"waiting for {server.url}", voice, patience_s=patience_s)

    return ready_of(((server, settled(server)) for server in running_servers()), voice)


def settled_state(read_state: Callable[[], str], what: str, voice: Voice, *, patience_s: float) -> str:
    """What the state is when it is none that passes: a model that is being loaded twice needs twice the memory."""
    state, give_up_at = read_state(), time.monotonic() + patience_s
    if state in PASSING and patience_s:
        voice.aside(f"{what}: {state}")
    while state in PASSING and time.monotonic() < give_up_at:
        time.sleep(POLL_S)
        state = read_state()
    return state


def ready_of(servers: Iterable[tuple[RunningServer, str]], voice: Voice) -> Iterator[RunningServer]:
    for server, state in servers:
        if state == "ready":
            yield server
        else:
            voice.aside(f"not joining {server.url}: {state}")


def join(url: str, api_key: str, settings: Settings, voice: Voice) -> Model | None:
    """The server's model; None: it writes no text."""
    from eaglelocal.client.http_client import HttpClient

    named = settings.origins()["target"].startswith("--")  # elsewhere a target is a file of this machine
    model = settings.target if named and settings.target else ""
    client = HttpClient(url, api_key=api_key, model=model, reuses_prompts=True)
    info = client.start()
    if info.task is not Task.TEXT:
        client.close()
        return None
    voice.aside(f"joined {url}: {info.target}")
    return Model(client, None, info, takes_spec=client.takes_spec)
