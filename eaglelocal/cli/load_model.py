"""Load a model from the flags of a command: settings, options, plan, engine. Used by every command that runs a model.

Imports nothing heavy before a model is needed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli.early_engine import ENGINE
from eaglelocal.cli.output import shown_progress
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import MODEL_OPTIONS, ModelChoice, RunOptions, apply_choice, parse_draft
from eaglelocal.core.sampling import RECOMMENDED, SamplingParams
from eaglelocal.core.thinking import parse_thinking
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import UsageError
from eaglelocal.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from eaglelocal.client.engine_client import EngineClient
    from eaglelocal.core.events import EngineInfo
    from eaglelocal.learning.idle_learning import IdleLearning, ModelLearning
    from eaglelocal.memory.budget import Needs
    from eaglelocal.preparation.decision import Decision
    from eaglelocal.preparation.model_choices import CatalogChoice, ModelPreview
    from eaglelocal.tui.chat.model_picker import ModelSource
    from eaglelocal.worker.child import SpareProcess


EMBEDDER = "eaglelocal.loading.embedding_builder:build"


def load_settings(parameters: Mapping[str, object]) -> Settings:
    """Return the settings; those among a command's parameters override the environment and the config file."""
    given = {name: value for name, value in parameters.items() if name in SETTINGS}
    # a flag that can be repeated is an empty sequence, not None, if it was not given
    flags = {name: value for name, value in given.items() if value not in ((), [])}
    return Settings.load(flags, os.environ, locations.config_file())


def is_flag(settings: Settings, name: str) -> bool:
    """Return whether a setting was given on the command line."""
    return settings.origins().get(name, "").startswith("--")


def default_sampling(settings: Settings) -> SamplingParams:
    """Return the default sampling of requests; parameters that were not set are left to the model's recommendation."""
    thinking = parse_thinking(settings.thinking_budget)
    if settings.thinking_message is not None:
        thinking = replace(thinking, message=settings.thinking_message)
    return SamplingParams(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        stop_loops=bool(settings.stop_loops),
        thinking=thinking,
        left_open=frozenset(name for name in RECOMMENDED if not settings.is_set(name)),
    )


def make_run_options(settings: Settings, *, parallel: int = 1) -> RunOptions:
    """Return the options of a run as the settings have them."""
    draft, spec = parse_draft(settings.draft), settings.spec
    return RunOptions(
        target=settings.target,
        mmproj=settings.mmproj,
        lora=settings.lora,
        draft_type=settings.draft_type,
        ctx=settings.ctx,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        n_cpu_moe=settings.n_cpu_moe,
        override_tensor=settings.override_tensor,
        device=settings.device,
        split=settings.split,
        rpc=settings.rpc,
        flash_attn=settings.flash_attn,
        model_folders=settings.model_folders,
        draft=draft.model,
        lookups=draft.lookups,
        spec=int(spec) if isinstance(spec, str) and spec.isdecimal() else spec,
        parallel=parallel,
        kv_type=settings.kv_type if settings.is_set("kv_type") else None,
        origins=tuple(each for each in settings.set_by if each[0] in MODEL_OPTIONS and not is_flag(settings, each[0])),
    )


def keep_conversations(options: RunOptions, settings: Settings) -> RunOptions:
    """Return the options of a long-running engine, with the settings for keeping conversations."""
    return replace(
        options,
        cache_ram=settings.cache_ram,
        lookup_memory=settings.lookup_memory,
        cache_disk=settings.cache_disk,
        learns=settings.learn,
    )


def count_slots(settings: Settings) -> int:
    """Return --parallel if it was given as a flag, else 1: the environment and the config file mean it for servers."""
    return settings.parallel or 1 if is_flag(settings, "parallel") else 1


def plan_run(options: RunOptions, output: MessageOutput) -> Plan:
    """Return the plan of a run on this machine, with its files on disk."""
    from eaglelocal.preparation.autoplan import autoplan

    decision = autoplan(options)
    show_decision(decision, output)
    return write_plan(decision, output)


def show_decision(decision: Decision, output: MessageOutput) -> None:
    """Show what planning decided for options left open, if it is not what the user expects anyway."""
    if decision.note:
        output.note(f"as planned: {decision.note}")


def write_plan(decision: Decision, output: MessageOutput) -> Plan:
    """Return the plan, and show progress if an inflated embedded model has to be written first."""
    from eaglelocal.preparation.decision import make_plan

    with shown_progress(output) as show:
        plan = make_plan(decision, on_progress=show)
    cuts = decision.options.explain_cuts
    for cut in cuts(decision.target, ctx=plan.n_ctx, kv_type=plan.kv_type, n_cpu_moe=plan.n_cpu_moe):
        output.note(f"note: {cut}")
    return plan


def load_model(
    plan: Plan, output: MessageOutput, spare: SpareProcess | None = None, learning: IdleLearning | None = None
) -> ActiveModel:
    if plan.task is not ModelTask.TEXT:
        what = f"{plan.target_label} {plan.task.description}"
        raise UsageError(what, hint=f"eaglelocal serve --target {quote_path(plan.target)}")
    client, info = LoadingEngine(plan, spare=spare, learning=learning).wait(output)
    if learning is None:
        return ActiveModel(client, plan, info)
    return ActiveModel(client, plan, info, read_learning=learning.status)


class LoadingEngine:
    """An engine that has begun to load. Close it, or take it over by `wait`. `num_retries`: see RestartPolicy.

    spare     a process that waits for a plan
    learning  keeps the answers of a text model, and improves its head; None: nothing is kept
    """

    def __init__(
        self,
        plan: Plan,
        *,
        num_retries: int = 0,
        spare: SpareProcess | None = None,
        learning: IdleLearning | None = None,
    ) -> None:
        from eaglelocal.client.engine_client import EngineClient
        from eaglelocal.worker.supervisor import RestartPolicy

        self._plan, self._what = plan, f"loading {plan.target_label}"
        self._show: Callable[[LoadProgress], None] = lambda progress: None  # until somebody waits
        self._learning: ModelLearning | None = None
        if learning is not None and plan.task is ModelTask.TEXT:
            with suppress(OSError):  # a file of it cannot be read: loading says why
                self._learning = learning.open(plan)
        watch = None if learning is None else learning.count_request  # nothing is learned while a request runs
        self._client = EngineClient(
            plan,
            builder=ENGINE if plan.task is ModelTask.TEXT else EMBEDDER,
            on_progress=lambda event: self._show(LoadProgress(event.fraction, self._what, event.detail)),
            restart=RestartPolicy(num_retries=num_retries),
            spare=spare,
            watch=watch if self._learning is None else self._learning.submit,
        )
        self._client.begin()

    def wait(self, output: MessageOutput) -> tuple[EngineClient, EngineInfo]:
        """Return the engine once it is ready, and its info. Raises the error that prevents it, after closing it."""
        from eaglelocal.hub.draft_resolver import note_paths

        progress = output.progress()
        progress(LoadProgress(0.0, self._what))  # the starting process reports nothing yet
        self._show = progress
        try:
            info = self._client.start()
            note_paths(self._plan)
            if self._learning is not None:
                self._learning.begin(self._client)
                if self._learning.why:
                    output.note(f"note: answers are only kept: {self._learning.why}")
            return self._client, info
        except BaseException:  # Ctrl-C too: leave no engine process behind
            self.close()
            raise
        finally:
            progress.finish()

    def close(self) -> None:
        self._client.close()


# ---- models on disk: the source of the model picker: the models on this disk, and how each would run with these
# settings
def make_model_source(settings: Settings) -> ModelSource:
    from eaglelocal.preparation.model_choices import list_catalog_names, list_choices
    from eaglelocal.tui.chat.model_picker import ModelSource

    return ModelSource(
        list_entries=partial(list_choices, settings.model_folders),
        list_names=partial(list_model_names, settings),
        list_known=list_catalog_names,
        assess=partial(assess_choice, settings),
        list_catalog=partial(list_catalog_choices, settings),
        find_best=partial(find_best_model, settings),
        pull=pull_model,
    )


def list_catalog_choices(
    settings: Settings, words: Sequence[str], active: ActiveModel | None
) -> Iterator[CatalogChoice]:
    """Yield the models of the catalog that have the words, with their plans once the active model is unloaded."""
    from eaglelocal.preparation.model_choices import list_catalog

    return list_catalog(make_run_options(settings, parallel=count_slots(settings)), words, freed=find_held(active))


def find_best_model(settings: Settings, active: ActiveModel) -> CatalogChoice | None:
    """Return the model to download for this machine, if it is clearly better than those on disk."""
    from eaglelocal.preparation.model_choices import find_better

    return find_better(make_run_options(settings, parallel=count_slots(settings)), freed=find_held(active))


def pull_model(reference: str, output: MessageOutput) -> None:
    from eaglelocal.cli.pull import pull_for_chat

    pull_for_chat(reference, output)


def find_held(active: ActiveModel | None) -> Needs:
    """Return the memory that unloading the active model would free."""
    from eaglelocal.preparation.model_choices import estimate_held

    return () if active is None or active.plan is None else estimate_held(active.plan, active.info)


def list_model_names(settings: Settings) -> Sequence[str]:
    from eaglelocal.preparation.model_choices import list_names

    return list_names(settings.model_folders)


def mention_model(prompt: str | None, settings: Settings, output: MessageOutput) -> None:
    """Say how to chat with a model whose name was given as the question, as `ollama run NAME` takes it.

    Raises UsageError for a file of a model: nobody asks that.
    """
    words = (prompt or "").split()
    if len(words) != 1 or is_flag(settings, "target") or settings.url is not None:
        return
    from eaglelocal.preparation.model_choices import list_catalog_names  # few questions need it

    name = words[0].lower()
    command = shlex.join(["eaglelocal", "chat", "--target", words[0]])
    if name.endswith(".gguf"):
        raise UsageError(f"{words[0]} is a model, not a question", hint=command)
    catalog = (part for reference in list_catalog_names() for part in (reference, reference.partition(":")[0]))
    if not {name, f"{name}:latest"}.isdisjoint(known.lower() for known in (*list_model_names(settings), *catalog)):
        output.note(f"{words[0]!r} is taken as a question; for this model: {command}")


def assess_choice(settings: Settings, choice: ModelChoice, active: ActiveModel | None) -> ModelPreview:
    """Return how the model of a choice would run here, once the active one is unloaded."""
    from eaglelocal.preparation.model_choices import assess_model

    options = apply_choice(make_run_options(settings, parallel=count_slots(settings)), replace(choice, spec=None))
    return assess_model(options, freed=find_held(active))
