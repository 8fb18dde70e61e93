"""`eaglelocal serve`: from flags to a server in the foreground.

Settings, keys and the files of every model are checked before the address is bound. The first engine's process is
started before all that, and loads while the server is imported. The first load makes all plans, because it may have to
write the embedded model or a lighter head; /health answers meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.early_engine import ENGINE
from eaglelocal.cli.json_output import JsonOutput
from eaglelocal.cli.learning import open_learning
from eaglelocal.cli.load_model import default_sampling, keep_conversations, load_settings, make_run_options
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.cli.server_engines import ServerEngines
from eaglelocal.core.plan import Owners
from eaglelocal.core.run_options import ModelChoice, apply_choice
from eaglelocal.core.terminal_text import FaultInLine, format_place, read_text_file
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError
from eaglelocal.processes.this_process import settle
from eaglelocal.server.listening_socket import bind_socket, find_lan_address
from eaglelocal.settings import Settings
from eaglelocal.worker.child import SpareProcess

if TYPE_CHECKING:
    from eaglelocal.cli.serve_screen import ServeScreen
    from eaglelocal.client.running_servers import RunningServer
    from eaglelocal.core.run_options import RunOptions
    from eaglelocal.preparation.decision import Decision
    from eaglelocal.server.access import Access
    from eaglelocal.server.loaded_models import LoadedModel
    from eaglelocal.server.server_certificate import ServerCertificate
    from eaglelocal.server.server_state import ServerState

DEFAULT_PARALLEL = 4
MAX_OFFERED = 20  # models of Ollama and LM Studio that a server offers by default


@flags.takes(
    *(*flags.MODEL, "spec", "lora", "models", "max_loaded", "alias"),
    *("host", "port", "api_key_file", "shared_prefix", "allowed_hosts", "cors_origins", "ssl", "ssl_cert", "ssl_key"),
    *("parallel", "max_waiting", "request_timeout", "idle_unload", "drain"),
    *(*flags.MACHINE, *flags.SAMPLING, *flags.KEEPING, "stop_loops", "log"),
    before="no_tui",
)
def serve(
    context: typer.Context,
    no_tui: Annotated[bool, typer.Option("--no-tui", help="Log to stderr instead of showing the monitor.")] = False,
) -> None:
    """Serve models over the APIs of OpenAI, Anthropic and Ollama.

    \b
    eaglelocal serve
    eaglelocal serve --target ./model.gguf --draft ./head.gguf --parallel 8
    eaglelocal serve --host 0.0.0.0 --api-key-file ~/.config/eaglelocal/keys
    """
    settings = load_settings(context.params)
    output = standard_output(colour=settings.colour)  # also sets how streams encode what they cannot carry
    with context.obj or SpareProcess(ENGINE) as spare:  # its imports run beside ours and the planning
        screen = None
        if not no_tui and settings.log != "json":
            from eaglelocal.cli.serve_screen import ServeScreen, can_show

            screen = ServeScreen(settings) if can_show(os.environ) else None
        plain = JsonOutput(sys.stderr) if settings.log == "json" else output
        run_server(settings, plain if screen is None else screen.output(settings.colour), spare, screen)


def run_server(settings: Settings, output: Output, spare: SpareProcess, screen: ServeScreen | None = None) -> None:
    """Serve until stopped. spare: the first engine's process."""
    access, key_names, own_key = open_access(settings, output)
    prefixes = tuple(map(read_shared_prefix, settings.shared_prefix))
    owners = Owners(access.keys.names_on_disk, prefixes, default_sampling(settings).thinking)
    decisions = plan_all(settings, output)
    certificate = find_certificate(settings)
    listening = bind_server_socket(settings)
    learning = open_learning(settings, access.keys.learning_owners, output)
    most = settings.max_loaded or None
    engines = ServerEngines(decisions, output, most=most, spare=spare, learning=learning, owners=owners)
    engines.begin()
    try:
        from eaglelocal.cli.serve_log import ServerLog, log_to  # imports the server, while the engine loads
        from eaglelocal.client.running_servers import announce, describe_this_server, keep_announced
        from eaglelocal.server.app import create_app
        from eaglelocal.server.run_server import Runtime, run_until_stopped

        status = output.status() if settings.log == "text" else None
        log_to(output, status)
        serving = make_server_state(settings, decisions, engines, access)
        app = create_app(serving, access)
        settle()
        host, port = listening.getsockname()[:2]
        scheme = "http" if certificate is None else "https"
        log = ServerLog(output, serving, status, address=(host, port), scheme=scheme)
        log.show_loading(next(iter(decisions)), keys=key_names)
        server = describe_this_server(host, port, target=next(iter(decisions)), api_key=own_key, scheme=scheme)
        if certificate is not None:
            show_certificate(certificate, server, output)

        def on_ready(loaded: LoadedModel) -> None:
            announce(dataclasses.replace(server, target=loaded.info.target))
            log.show_ready(loaded)

        task = log.watch if screen is None else partial(screen.show, server, log.watch)
        runtime = Runtime(on_ready=on_ready, background=task, drain_s=settings.drain, certificate=certificate)
        try:
            with keep_announced(server):
                run_until_stopped(app, serving, listening, runtime)
        finally:
            log.close()
    finally:
        engines.close()


def find_certificate(settings: Settings) -> ServerCertificate | None:
    """Return the certificate for HTTPS; None: plain HTTP. Raises UsageError and ResourceError."""
    if settings.ssl == "off" and not (settings.ssl_cert or settings.ssl_key):
        return None
    from eaglelocal.server.server_certificate import choose_certificate

    listening = settings.host if settings.host not in ("0.0.0.0", "::") else find_lan_address() or "localhost"
    names = [listening, *(name for name in settings.allowed_hosts if "*" not in name)]
    return choose_certificate(settings.ssl, settings.ssl_cert or "", settings.ssl_key or "", names)


def show_certificate(certificate: ServerCertificate, server: RunningServer, output: Output) -> None:
    """Show the fingerprint, and let this user's commands trust the certificate at the server's own address."""
    from eaglelocal.client.trusted_certificates import fingerprint, trust

    with suppress(OSError):
        trust(urlsplit(server.url).hostname or "", server.port, certificate.text)
    output.message(f"HTTPS; fingerprint of the certificate: {fingerprint(certificate.text)}")


def bind_server_socket(settings: Settings) -> socket.socket:
    """Return the listening socket. Raises ResourceError for a port in use, which names our server that uses it."""
    try:
        return bind_socket(settings.host, settings.port)
    except ResourceError as problem:
        from eaglelocal.client.running_servers import find_running_servers

        for server in find_running_servers():
            if server.port == settings.port:
                what = f"port {server.port} is taken by the eaglelocal server of {server.target} (pid {server.pid})"
                raise ResourceError(what, hint=f"eaglelocal stop {server.port}") from problem
        raise


def open_access(settings: Settings, output: Output) -> tuple[Access, list[str], str]:
    """Read the keys, and write one where the key file does not exist; return access, the keys' names and our own key.

    Raises UsageError on an address that needs a key and has none.
    """
    from eaglelocal.server.access import (
        Access,
        add_chat_key,
        check_bind,
        key_warnings,
        parse_host_names,
        parse_origins,
        read_keys,
    )

    key_file = expand_path(settings.api_key_file) if settings.api_key_file else None
    is_new = key_file is not None and not key_file.exists()
    listed_keys = read_keys(key_file, os.environ)
    keys, own_key = add_chat_key(listed_keys)
    check_bind(settings.host, keys)
    for warning in key_warnings(key_file, listed_keys):
        output.message(f"warning: {warning}")
    if is_new:
        output.message(f"a new key was written to {key_file}")
    access = Access(
        host=settings.host,
        keys=keys,
        names=parse_host_names((*settings.allowed_hosts, settings.host)),
        origins=parse_origins(settings.cors_origins),
    )
    return access, [name for name, _ in listed_keys.by_name], own_key


def read_shared_prefix(name: str) -> str:
    """Return the text of a --shared-prefix, without white space at its ends. Raises UsageError."""
    path = expand_path(name)
    try:
        text = read_text_file(path).strip()
    except (OSError, FaultInLine) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--shared-prefix {format_place(path, error)} cannot be read: {reason}") from error
    if not text:
        raise UsageError(f"--shared-prefix {path} is empty", hint="write into it how the system prompt begins")
    return text


def plan_all(settings: Settings, output: Output) -> dict[str, Decision]:
    """Return the decision for each model by its name in requests, and show it; the first is loaded first."""
    from eaglelocal.preparation.autoplan import autoplan
    from eaglelocal.preparation.coresidency import plan_together

    first = plan_first(settings)
    others: dict[str, Decision] = {}
    for name in list_requested(settings):
        if name == first.target:
            continue
        try:
            options = server_options(settings, first.options.parallel)
            others[name] = autoplan(apply_choice(options, ModelChoice(target=name)))
        except EagleLocalError as error:
            if name in settings.models:
                raise
            output.note(f"{name} is left out: {error.message}")  # just one of the files in a folder
    first, planned_others = plan_together(first, others, most=settings.max_loaded or None)
    decisions = {first.target: first} | planned_others
    for name, one in decisions.items():
        if note := describe_first(one, settings) if one is first else one.note:
            output.note(f"as planned: {f'{name}: ' * (one is not first)}{note}")
    return decisions


def list_requested(settings: Settings) -> list[str]:
    """Return the models that requests may name: those of the setting, and those in its folders by their names.

    Without a target also the first MAX_OFFERED of Ollama and LM Studio: each of them is planned at the start.
    """
    folders = settings.model_folders
    names = [name for name in settings.models if name not in folders]
    if not folders and settings.target is not None:
        return names
    from eaglelocal.hub.inventory import HEAD, describe_library
    from eaglelocal.hub.model_library import OWN_FOLDER

    found = [entry for entry in describe_library(folders) if settings.target is None or entry.origin == OWN_FOLDER]
    answering = [entry for entry in found if not entry.description.problem and entry.description.kind != HEAD]
    own = [entry.reference for entry in answering if entry.origin == OWN_FOLDER]
    offered = [entry.reference for entry in answering if entry.origin != OWN_FOLDER][:MAX_OFFERED]
    return list(dict.fromkeys([*names, *own, *offered]))


def server_options(settings: Settings, parallel: int) -> RunOptions:
    options = make_run_options(settings, parallel=parallel)
    return dataclasses.replace(keep_conversations(options, settings), binds_answers=True)


def plan_first(settings: Settings) -> Decision:
    """Plan the first model. Without --parallel, use fewer slots if it does not fit with DEFAULT_PARALLEL."""
    from eaglelocal.preparation.autoplan import autoplan, replan

    most, *fewer = [settings.parallel] if settings.parallel else [DEFAULT_PARALLEL, 2, 1]
    decision = autoplan(server_options(settings, most))
    for num_slots in fewer:
        if decision.fits:
            break
        options = dataclasses.replace(decision.options, parallel=num_slots)
        other = replan(dataclasses.replace(decision, options=options))
        decision = other if other.fits else decision
    return decision


def describe_first(decision: Decision, settings: Settings) -> str:
    num_slots = decision.options.parallel
    fewer = f"{num_slots} at once, because memory is short" * (num_slots < (settings.parallel or DEFAULT_PARALLEL))
    return "; ".join(filter(None, [decision.note, fewer]))


def make_server_state(
    settings: Settings, decisions: dict[str, Decision], engines: ServerEngines, access: Access
) -> ServerState:
    from eaglelocal.server.connections import max_connections, raise_descriptor_limit
    from eaglelocal.server.metrics import Metrics
    from eaglelocal.server.model_manager import ModelManager
    from eaglelocal.server.server_state import AdmissionQueue, ServerLimits, ServerState

    metrics = Metrics()
    limits = ServerLimits(
        max_waiting=settings.max_waiting,
        num_connections=max_connections(raise_descriptor_limit()),
        request_s=settings.request_timeout,
    )
    return ServerState(
        models=ModelManager(
            list(decisions),
            engines.load,
            idle_s=settings.idle_unload,
            aliases=settings.alias,
            find_plan=engines.find_plan,
            choose_victims=engines.choose_victims,
            before_unload=metrics.read_totals,
        ),
        admission=AdmissionQueue(
            num_slots=next(iter(decisions.values())).options.parallel,
            max_waiting=limits.max_waiting,
            # counts the local `chat`'s own key: it keeps its share of the queue, however many requests others send
            is_shared=access.keys.is_shared,
        ),
        metrics=metrics,
        defaults=default_sampling(settings),
        limits=limits,
        read_learning=engines.read_learning,
    )
