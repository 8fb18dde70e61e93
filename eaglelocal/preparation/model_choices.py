"""The models on this disk and in the catalog as choices: what they are at once, and how each would run when asked.

For the model picker, `search` and completion. Nothing is loaded or downloaded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from eaglelocal import locations
from eaglelocal.catalog.catalog import load_catalog, load_machines
from eaglelocal.catalog.reference import DEMO
from eaglelocal.core.events import EngineInfo
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.hub_cache import list_models
from eaglelocal.hub.inventory import list_all_models, list_embedded, list_inflated
from eaglelocal.hub.model_library import list_library
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind, Needs
from eaglelocal.planning.candidate import offload_text
from eaglelocal.planning.machine_spec import subtract_other_models
from eaglelocal.planning.options import ModelOption, make_catalog_options
from eaglelocal.planning.plan_models import plan_models
from eaglelocal.planning.plan_search import SearchOutcome
from eaglelocal.preparation.autoplan import autoplan
from eaglelocal.preparation.decision import Decision, choose_ctx
from eaglelocal.preparation.machines import find_machine, this_machine
from eaglelocal.preparation.models import find_models, read_measured_costs


@dataclass(frozen=True, slots=True)
class ModelChoiceEntry:
    """A model that can answer. `place`: whose folder it is in."""

    reference: str
    size_bytes: int
    place: str


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """The way in which a model would run here. `problem`: why it cannot; `note`: what is unexpected."""

    fits: bool
    n_ctx: int = 0
    kv_type: str = "f16"
    draft: str = ""
    note: str = ""
    problem: str = ""
    tok_s: float | None = None  # predicted
    score: float = 0.0  # of a catalog model, as in CatalogChoice


@dataclass(frozen=True, slots=True)
class CatalogChoice:
    """A model of the catalog in one quantization, on this disk or not, and its plan for a machine."""

    option: ModelOption
    plan: SearchOutcome

    @property
    def fits(self) -> bool:
        return self.plan.chosen is not None

    @property
    def tok_s(self) -> float | None:
        """Return the predicted tokens per second; None: it does not fit."""
        return None if self.plan.chosen is None else self.plan.chosen.prediction.spec_tok_s

    @property
    def score(self) -> float:
        """Return the score for the options' goal, by which plans for a machine compare; -inf: it does not fit."""
        return -math.inf if self.plan.chosen is None else self.plan.chosen.score


def list_catalog(
    options: RunOptions,
    words: Sequence[str] = (),
    *,
    machine_name: str | None = None,
    ram_gib: float | None = None,
    freed: Needs = (),
) -> Iterator[CatalogChoice]:
    """Yield the models of the catalog whose reference has all the words, with their plans, each when it is asked for.

    A plan takes milliseconds, up to a second for a mixture of experts that exceeds the card.

    machine_name, ram_gib  as in `plan_target`
    freed                  the memory of a model that is unloaded for it

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    catalog = load_catalog()
    machine = subtract_other_models(find_machine(catalog, options, machine_name, ram_gib), negate(freed))
    for option in find_models(dataclasses.replace(options, target=None), catalog):
        if all(word.lower() in option.reference.lower() for word in words):
            alone = dataclasses.replace(options, target=option.reference)
            measured = read_measured_costs([option], machine, options.kv_type)
            yield CatalogChoice(option, plan_models([option], machine, alone, measured=measured))


def list_targets(options: RunOptions, *, machine_name: str | None = None) -> Iterator[CatalogChoice]:
    """Yield each model of the catalog in the quantization that is best for the machine. Raises as above."""
    catalog = load_catalog()
    machine = find_machine(catalog, options, machine_name, None)
    for target, group in groupby(find_models(options, catalog), key=lambda option: option.target):
        models = list(group)
        measured = read_measured_costs(models, machine, options.kv_type)
        plan = plan_models(models, machine, dataclasses.replace(options, target=target), measured=measured)
        yield CatalogChoice(plan.chosen.option if plan.chosen else models[0], plan)


MUCH_BETTER = 1.5  # times the effective parameters of the best model on disk, so that a download is suggested


def find_better(options: RunOptions, *, freed: Needs = ()) -> CatalogChoice | None:
    """Return the best model of the catalog for this machine, unless one on disk is nearly as good. Raises as above."""
    catalog = load_catalog()
    machine = subtract_other_models(find_machine(catalog, options, None, None), negate(freed))
    models = find_models(dataclasses.replace(options, target=None), catalog)
    outcome = plan_models(models, machine, dataclasses.replace(options, target=None))
    best = outcome.chosen
    here = [model.answers_b for model in models if model.is_here]
    if best is None or best.option.is_here or best.option.answers_b < MUCH_BETTER * max(here, default=0.0):
        return None
    return CatalogChoice(best.option, outcome)


def list_choices(folders: Sequence[str] = ()) -> list[ModelChoiceEntry]:
    """Return the models on this disk that write text, the embedded one last. Reads their headers."""
    entries = [
        ModelChoiceEntry(entry.reference, entry.size_bytes, entry.origin)
        for entry in list_all_models(locations.hub_cache_dir(), folders)
        if entry.description.kind == "model" and not entry.description.problem and not entry.is_outdated
    ]
    return sorted(entries, key=lambda entry: entry.reference.startswith(DEMO))


def list_names(folders: Sequence[str] = ()) -> list[str]:
    """Return the references of the models on this disk, for completion: by file names, without reading headers."""
    cached = (model.reference for model in list_models(locations.hub_cache_dir()) if not model.build.is_draft)
    library = (model.name for model in list_library(folders))
    generated = (entry.reference for entry in (*list_inflated(), *list_embedded()) if not entry.is_outdated)
    return list(dict.fromkeys([*cached, *library, DEMO, *generated]))


def list_catalog_names() -> list[str]:
    """Return the references of the whole catalog, for completion; none if it cannot be read."""
    try:
        catalog = load_catalog()
    except EagleLocalError:
        return []
    return [each.reference for target in catalog.targets.values() for each in make_catalog_options(target, catalog)]


def assess_model(options: RunOptions, *, freed: Needs = ()) -> ModelPreview:
    """Return how the options' target would run here. `freed`: the memory of a model that is unloaded for it."""
    try:
        return describe_decision(autoplan(options, other_needs=negate(freed)))
    except EagleLocalError as error:
        return ModelPreview(fits=False, problem=error.message)


def negate(needs: Needs) -> Needs:
    """Return needs that give back this memory."""
    return tuple(dataclasses.replace(buffer, num_bytes=-buffer.num_bytes) for buffer in needs)


def estimate_held(plan: Plan, info: EngineInfo) -> Needs:
    """Return the memory that unloading an engine would free; weights in RAM are mapped and count as free already."""
    rooms = this_machine(load_machines()).free_memory
    gpus = [room.device for room in rooms if room.device != RAM]
    if gpus and plan.gpu_layers is None:
        return tuple(Buffer(gpu, MemoryKind.CACHE, info.total_bytes // len(gpus)) for gpu in gpus)
    return (Buffer(RAM, MemoryKind.CACHE, info.cache_bytes + info.compute_bytes),)


def describe_decision(decision: Decision) -> ModelPreview:
    """Return a decision as a preview. Raises UsageError on a context that the model was not trained for."""
    files, candidate = decision.files, decision.candidate
    n_ctx = choose_ctx(decision, files.target) if files is not None else decision.ctx or 0
    kv_type = decision.kv_type or "f16"
    if not decision.fits:
        return ModelPreview(fits=False, n_ctx=n_ctx, kv_type=kv_type, problem="too large for this machine")
    draft = decision.without_draft or (files.draft.label if files is not None else "its own EAGLE-3.1 head")
    note = "" if candidate is None else offload_text(candidate)
    tok_s = None if candidate is None else candidate.prediction.spec_tok_s
    return ModelPreview(fits=True, n_ctx=n_ctx, kv_type=kv_type, draft=draft, note=note, tok_s=tok_s)


def describe_choice(choice: CatalogChoice) -> ModelPreview:
    """Return the plan of a catalog model as a preview."""
    best = choice.plan.chosen
    if best is None:
        rejected = choice.plan.rejected
        return ModelPreview(fits=False, problem=rejected[0].reason if rejected else "nothing of it is known to fit")
    setup = best.setup
    draft, note = best.draft.id, offload_text(best)
    return ModelPreview(True, setup.n_ctx, setup.kv_type, draft, note, tok_s=choice.tok_s, score=choice.score)
