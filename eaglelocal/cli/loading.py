"""From flags to a model that is ready: settings, wish, plan, engine. Every command that runs a model begins here.

Nothing heavy is imported before a model is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli.output import Output
from eaglelocal.cli.session import Choice, Model
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.hub.wish import Wish

NOT_SETTINGS = frozenset({"prompt", "plain", "as_json", "tint"})


def settings_of(parameters: Mapping[str, object]) -> Settings:
    given = {name: value for name, value in parameters.items() if name not in NOT_SETTINGS}
    return Settings.load(given, os.environ, locations.config_file())


def wish_of(settings: Settings, choice: Choice) -> Wish:
    """The settings, with what was chosen while chatting. A draft named at the start belongs to the first target."""
    from eaglelocal.hub.wish import Wish

    draft = "auto" if choice.target and settings.draft != "none" else settings.draft
    spec = settings.spec if choice.spec is None else choice.spec
    return Wish(
        target=choice.target or settings.target or "demo",
        draft=draft,
        spec=int(spec) if isinstance(spec, str) and spec.isdigit() else spec,
        ctx=settings.ctx,
        parallel=1,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        device=settings.device,
        split=settings.split,
        kv_type=settings.kv_type,
        flash_attn=settings.flash_attn,
    )


def make_plan(wish: Wish, output: Output) -> Plan:
    """Find the files; the inflated embedded model is written now if it is not there."""
    from eaglelocal.hub.resolve import resolve

    progress = output.progress()
    try:
        return resolve(wish, on_progress=lambda fraction, what: progress(LoadProgress(fraction, what)))
    finally:
        progress.finish()


def load_model(plan: Plan, output: Output) -> Model:
    """Start the engine and wait until it is ready."""
    from eaglelocal.client.engine_client import EngineClient

    progress = output.progress()

    def show(fraction: float) -> None:
        progress(LoadProgress(fraction, f"loading {plan.target_label}"))

    show(0.0)  # a process that starts says nothing yet
    client = EngineClient(plan, on_progress=lambda event: show(event.fraction))
    try:
        return Model(client, plan, client.start())
    except BaseException:  # Ctrl-C too: no engine process stays behind
        client.close()
        raise
    finally:
        progress.finish()
