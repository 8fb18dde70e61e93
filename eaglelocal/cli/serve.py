"""`eaglelocal serve`: from flags to a server in the foreground.

Checks what can be checked before anything is loaded: settings, keys, the address, the files of every model.
"""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.loading import (
    find_files,
    make_plan,
    sampling_of,
    settings_of,
    settle,
    start_engine,
    wish_of,
)
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.core.plan import Plan
from eaglelocal.settings import Settings
from eaglelocal.talk.report import model_line
from eaglelocal.talk.session import Choice

if TYPE_CHECKING:
    from eaglelocal.cli.serve_screen import ServeScreen
    from eaglelocal.server.access import Access
    from eaglelocal.server.models import Models
    from eaglelocal.server.serving import Serving

DEFAULT_PARALLEL = 4


def serve(  # many parameters: typer reads the flags from the signature
    context: typer.Context,
    target: flags.Target = None,
    draft: flags.Draft = None,
    draft_type: flags.DraftType = None,
    spec: flags.Spec = None,
    host: flags.Host = None,
    port: flags.Port = None,
    parallel: flags.Parallel = None,
    ctx: flags.Ctx = None,
    models: flags.Models = None,
    api_key_file: flags.ApiKeyFile = None,
    allowed_hosts: flags.AllowedHosts = None,
    cors_origins: flags.CorsOrigins = None,
    max_waiting: flags.MaxWaiting = None,
    request_timeout: flags.RequestTimeout = None,
    idle_unload: flags.IdleUnload = None,
    drain: flags.Drain = None,
    temperature: flags.Temperature = None,
    top_k: flags.TopK = None,
    top_p: flags.TopP = None,
    min_p: flags.MinP = None,
    max_tokens: flags.MaxTokens = None,
    threads: flags.Threads = None,
    gpu_layers: flags.GpuLayers = None,
    device: flags.Device = None,
    split: flags.Split = None,
    kv_type: flags.KvType = None,
    flash_attn: flags.FlashAttn = None,
    log: flags.Log = None,
    web: flags.Web = False,
    web_port: flags.WebPort = None,
    no_tui: Annotated[bool, typer.Option("--no-tui", help="No screen: lines, as when piped.")] = False,
) -> None:
    """Answer other programs on localhost, as OpenAI's and Anthropic's APIs do.

    \b
    eaglelocal serve
    eaglelocal serve --target ./model.gguf --draft ./head.gguf --parallel 8
    eaglelocal serve --host 0.0.0.0 --api-key-file ~/.config/eaglelocal/keys
    """
    from eaglelocal.cli.serve_screen import ServeScreen, can_show

    settings = settings_of(context.params)
    output = standard_output(colour=settings.colour)  # also says what streams can carry
    if no_tui or settings.log == "json" or not can_show(os.environ):
        run_server(settings, output, web=web)
    else:
        screen = ServeScreen(settings)
        run_server(settings, screen.output(settings.colour), screen, web=web)


def run_server(settings: Settings, output: Output, screen: ServeScreen | None = None, *, web: bool = False) -> None:
    """web: the monitor is shown in browsers too."""
    from eaglelocal.cli.browser import bound_page
    from eaglelocal.cli.serve_log import Said, log_to
    from eaglelocal.client.running import announced, this_server
    from eaglelocal.server.access import Access, check_bind, names_of, origins_of, read_keys, with_own_key
    from eaglelocal.server.app import create_app
    from eaglelocal.server.run import Runtime, bound, run

    key_file = Path(settings.api_key_file).expanduser() if settings.api_key_file else None
    is_new = key_file is not None and not key_file.exists()
    named = read_keys(key_file, os.environ)
    keys, own_key = with_own_key(named)
    check_bind(settings.host, keys)
    if is_new:
        output.message(f"a new key was written to {key_file}")
    access = Access(
        host=settings.host,
        keys=keys,
        names=names_of((*settings.allowed_hosts, settings.host)),
        origins=origins_of(settings.cors_origins),
    )
    listening = bound(settings.host, settings.port)
    page = bound_page(settings, access, output) if web else None
    plans = plans_of(settings, output)
    status = output.status() if settings.log == "text" else None
    log_to(output, status, as_json=settings.log == "json")
    serving = serving_of(settings, plans, access, output)
    said = Said(output, serving, status, address=listening.getsockname()[:2])
    said.starting(keys=[name for name, _ in named.by_name])
    host, port = listening.getsockname()[:2]
    server = this_server(host, port, target=plans[next(iter(plans))].target_label, api_key=own_key)
    beside = said.watch if screen is None else partial(screen.show, server, said.watch)
    if page is not None:
        beside = page.beside(server.url, beside)
    runtime = Runtime(on_ready=said.ready, beside=beside, drain_s=settings.drain)
    try:
        with announced(server):
            run(create_app(serving, access), serving, listening, runtime)
    finally:
        said.ended()


def plans_of(settings: Settings, output: Output) -> dict[str, Plan]:
    """By the name under which each model is asked for, the first to be loaded first; what is missing is found now."""
    parallel = settings.parallel or DEFAULT_PARALLEL
    first = settle(wish_of(settings, Choice(), parallel=parallel), output)
    plans = {str(first.target): find_files(first, output)}
    for name in dict.fromkeys(settings.models):
        if name not in plans:
            plans[name] = make_plan(wish_of(settings, Choice(target=name), parallel=parallel), output)
    return {name: dataclasses.replace(plan, binds_answers=True) for name, plan in plans.items()}


def serving_of(settings: Settings, plans: dict[str, Plan], access: Access, output: Output) -> Serving:
    from eaglelocal.server.admission import Admission
    from eaglelocal.server.metrics import Metrics
    from eaglelocal.server.serving import Limits, Serving

    limits = Limits(max_waiting=settings.max_waiting, request_s=settings.request_timeout)
    return Serving(
        models=models_of(plans, settings.idle_unload, output),
        admission=Admission(
            num_slots=settings.parallel or DEFAULT_PARALLEL,
            max_waiting=limits.max_waiting,
            # the key of this machine's own `chat` counts: who sits there gets in, however much the others ask
            is_shared=len(access.keys.by_name) > 1,
        ),
        metrics=Metrics(),
        defaults=sampling_of(settings),
        limits=limits,
    )


def models_of(plans: dict[str, Plan], idle_s: float, output: Output) -> Models:
    from eaglelocal.server.models import Models, Opened

    def load(name: str) -> Opened:
        client, info = start_engine(plans[name], output)
        output.message(model_line(info, plans[name]))
        for note in info.notes:
            output.aside(f"note: {note}")
        return Opened(client, info)

    return Models(list(plans), load, idle_s=idle_s)
