"""`eaglelocal export`: write a head for other engines, what serves a target and its draft with vLLM, or fleet files.

The first word chooses: a word of FORMS writes for a target or a fleet; anything else is a head.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.export_head import (
    ALERTS,
    ARGOCD,
    COMPOSE,
    FORMS,
    HELM,
    KUEUE,
    LOADS,
    METHODS,
    MONITORING,
    QUEUED,
    VLLM,
    ExportFlags,
    export_head,
)
from eaglelocal.cli.load_model import load_settings, make_run_options
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.own_files import open_regular
from eaglelocal.core.run_options import ModelChoice, apply_choice
from eaglelocal.core.terminal_text import HALVES, make_printable
from eaglelocal.core.user_paths import expand_path, quote_path, quote_word
from eaglelocal.errors import IncompatibleError, ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.preparation.vllm.exports import VllmPlan
    from eaglelocal.preparation.vllm.served_pair import ServedPair

MAX_VALUES_BYTES = 1 << 20
SUFFIX_NAME = "suffix"
UNPINNED = ("auto", "none", "ngram", "ngram-mod", SUFFIX_NAME)  # values of --draft that name no weights
UPDATE_NOTE = (
    "an update starts the new pod beside the old: for that, double the quotas, or set `strategy` in the values"
)
QUEUE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@flags.takes()
def export(given: ExportFlags, as_json: flags.AsJson = False) -> None:
    """Write a draft head, or a target with its draft, for vLLM.

    A head is written as config.json and safetensors. vllm, compose, helm and argocd write a command line, a compose
    file, Helm values or an ApplicationSet that pin target and draft; kueue writes a queue for the pair. alerts and
    dashboard write Prometheus rules and a Grafana dashboard for eaglelocal and vLLM.

    \b
    eaglelocal export ./head.gguf --target-repo Qwen/Qwen3-8B --out ./my-head
    eaglelocal export vllm qwen3-8b --machine rtx-4090
    eaglelocal export helm qwen3-8b --machine h100-sxm --mig --out values.yaml
    eaglelocal export helm --check values.yaml
    eaglelocal export alerts --out rules.yaml
    """
    if given.what in FORMS:
        if given.check is not None:
            return check_values_file(given.what, given.check, as_json=as_json)
        write = export_monitoring if given.what in MONITORING else export_serving
        return write(given, as_json=as_json)
    if given.target is not None and not expand_path(given.what).is_file():
        what = f"{given.what!r} is not one of {', '.join(FORMS)}"
        raise UsageError(what, hint=f"eaglelocal export vllm {quote_path(given.target)}")
    return export_head(given, as_json=as_json)


@functools.lru_cache(maxsize=4)
def digest_head(path: Path) -> str:
    """Return a short digest of a head's file, so that the folder of another head of the same name is not taken."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:8]


def locate_head(order: ExportFlags, head: Path) -> Path:
    """Return the folder on this machine that a head is exported to: beside the file that is written."""
    beside = order.file.parent if order.file else Path()
    return (beside / f"{head.stem}-{digest_head(head)}-export").resolve()


def export_serving(order: ExportFlags, *, as_json: bool) -> None:
    """Plan the pair and write the command, compose file or values. Raises UsageError on what does not go together."""
    if order.target is None:
        raise UsageError("TARGET is missing", hint=f"eaglelocal export {order.what} qwen3-8b")
    check_order(order)
    plan = plan_order(order)
    draft = plan.pair.draft
    text = format_plan(order, plan)
    notes = [*plan.notes, *([UPDATE_NOTE] if order.what == KUEUE else [])]
    if draft is not None and draft.head_file is not None and plan.schedule:
        notes += export_own_head(order, plan, draft.head_file)
    write_text(order, text, notes, describe_plan(order, plan, text, notes) if as_json else None)


def export_monitoring(order: ExportFlags, *, as_json: bool) -> None:
    """Write alerts or a dashboard. Raises UsageError on a label with other characters, or a flag that does nothing."""
    from eaglelocal.preparation.vllm.fleet_files import LABEL, format_yaml, make_alerts, make_dashboard

    if order != ExportFlags(what=order.what, target=order.target, out=order.out, force=order.force):
        what = f"{order.what} takes only a label, --out, --force and --json"
        raise UsageError(what, hint=f"eaglelocal export {order.what}")
    label = order.target or ""
    if label and not LABEL.fullmatch(label):
        what = f"the label {make_printable(label)!r} has characters that other programs would replace, or too many"
        raise UsageError(what, hint="letters, digits and ./:@+-_, at most 128")
    check_file(order)
    if order.what == ALERTS:
        text = format_yaml([make_alerts(label)])
    else:
        text = json.dumps(make_dashboard(label), indent=2) + "\n"
    file = str(order.file) if order.file else None
    described = {"form": order.what, "label": label or None, "file": file, "text": text}
    write_text(order, text, [], {**described} if as_json else None)


def write_text(order: ExportFlags, text: str, notes: list[str], described: dict[str, object] | None) -> None:
    """Write the text to the file or standard output, and report it. `described`: with --json, what to print instead."""
    output = standard_output(colour=load_settings({}).colour)
    if order.file is not None:
        try:
            write_atomically(order.file, text)
        except OSError as error:
            raise ResourceError(f"cannot write {order.file}: {error.strerror}", hint="--out ./values.yaml") from error
    if described is not None:
        output.object(described)
        return
    for note in [*notes, *([] if order.file is None else [f"{order.file} is written"])]:
        output.message(note)
    if order.file is None:
        output.data(text.rstrip("\n"))


def check_order(order: ExportFlags) -> None:
    """Raise UsageError if flags have impossible values or exclude each other."""
    if order.load not in LOADS:
        raise UsageError(f"--load must be interactive or batch, not {order.load!r}", hint="leave --load out")
    if order.draft_method and order.draft_method not in METHODS:
        what = f"--draft-method must be one of {', '.join(METHODS)}, not {order.draft_method!r}"
        raise UsageError(what, hint="--draft-method eagle3")
    if not QUEUE_NAME.fullmatch(order.queue_name):
        raise UsageError(f"--queue {order.queue_name!r} is not a name in Kubernetes", hint="leave --queue out")
    for is_useless, what in list_useless(order):
        if is_useless:
            raise UsageError(what, hint=f"leave {what.split()[0]} out")
    if order.what != VLLM and order.draft == SUFFIX_NAME:
        what = f"suffix needs arctic-inference, which the image of {order.what} does not have"
        raise UsageError(what, hint="--draft ngram")
    check_file(order)


def check_file(order: ExportFlags) -> None:
    if order.file is not None and order.file.exists() and not (order.force and order.file.is_file()):
        raise UsageError(f"{order.file} exists", hint="`--force` replaces it")


def list_useless(order: ExportFlags) -> Iterator[tuple[bool, str]]:
    """Yield whether a flag changes nothing beside the others, and why; the text begins with the flag."""
    is_named = bool(order.draft_repo) or order.draft not in UNPINNED
    yield bool(order.draft_revision) and not is_named, "--draft-revision needs a draft that is named"
    yield bool(order.draft_method) and not order.draft_repo, "--draft-method needs --draft-repo"
    yield bool(order.draft_repo) and order.draft != "auto", f"--draft {order.draft} excludes --draft-repo"
    is_queued = order.what in QUEUED
    what = f"--queue is of helm, argocd and kueue, not of {order.what}"
    yield not is_queued and order.queue_name != order.load, what
    is_loose = not is_queued and order.parallel is not None
    yield is_loose and order.load != LOADS[0], "--load changes nothing beside --parallel"


def plan_order(order: ExportFlags) -> VllmPlan:
    """Return the plan for the machine that the order names, or this one. Raises what planning raises."""
    from eaglelocal.catalog.catalog import load_catalog
    from eaglelocal.preparation.machines import find_known_machine, this_machine
    from eaglelocal.preparation.vllm.exports import HEADS, plan_vllm
    from eaglelocal.preparation.vllm.find_pair import GivenSources, find_pair
    from eaglelocal.preparation.vllm.served_pair import ServingLimits, find_fit

    catalog = load_catalog()
    machine = find_known_machine(order.machine, catalog, None) if order.machine else this_machine(catalog.machines)
    if order.what != VLLM and not machine.gpus:
        raise UsageError(f"{order.what} needs an NVIDIA card, {machine.name} has none", hint="--machine rtx-4090")
    settings = load_settings({"draft": order.draft} if order.draft != SUFFIX_NAME else {})
    options = apply_choice(make_run_options(settings, parallel=order.parallel or 1), ModelChoice(target=order.target))

    def place_head(head: Path) -> str:
        folder = locate_head(order, head)
        return f"{HEADS}/{folder.name}" if order.what == COMPOSE else str(folder)

    given = GivenSources(
        target_repo=order.target_repo or "",
        revision=order.revision or "",
        draft_repo=order.draft_repo or "",
        draft_revision=order.draft_revision or "",
        draft_method=order.draft_method or "",
        head_folder=place_head,
    )
    limits = ServingLimits(ctx=order.ctx, parallel=order.parallel, load=order.load, wants_slice=order.mig)
    pair = find_pair(
        replace(options, draft=order.draft), given, catalog, lambda pair: find_fit(pair, machine, limits).device
    )
    check_pair(order, pair)
    return plan_vllm(pair, find_fit(pair, machine, limits))


def check_pair(order: ExportFlags, pair: ServedPair) -> None:
    """Raise UsageError if a commit is of no repository, or a container or a cluster needs a folder of this machine."""
    if order.draft_revision and (pair.draft is None or pair.draft.pin is None or pair.draft.pin.is_folder):
        what = f"--draft-revision: the draft of {pair.target.id} is in no repository of its own"
        raise UsageError(what, hint="leave --draft-revision out")
    if order.what == VLLM:
        return
    if pair.target.pin.is_folder:
        raise UsageError(f"{order.what} needs a target in a repository", hint="--target-repo USER/REPO")
    draft = pair.draft
    if draft is None or draft.pin is None or not draft.pin.is_folder:
        return
    hint = "--draft-repo USER/REPO --draft-revision COMMIT --draft-method eagle3"
    if draft.head_file is None:
        raise UsageError(f"{order.what} needs a draft in a repository, not in {draft.pin.repo}", hint=hint)
    if order.what in QUEUED:
        what = "a cluster cannot read a head of this machine: put the exported head into a repository"
        raise UsageError(what, hint=hint)


def export_own_head(order: ExportFlags, plan: VllmPlan, head: Path) -> list[str]:
    """Write a head of this machine beside the file; without a file, return the command that does."""
    folder, repo = locate_head(order, head), plan.pair.target.pin.repo
    if order.file is None:
        command = ["eaglelocal", "export", str(head), "--target-repo", repo, "--out", str(folder)]
        return [f"write the head first: {shlex.join(command)}"]
    if folder.exists() and not order.force:
        return [f"the head in {folder} is used as it is; `--force` writes it anew"]
    export_head(ExportFlags(what=str(head), out=str(folder), target_repo=repo, force=order.force), is_quiet=True)
    return [f"the head is written to {folder}"]


def format_plan(order: ExportFlags, plan: VllmPlan) -> str:
    """Return the text of the command or file. Raises UsageError on a name that is no text."""
    from eaglelocal.preparation.vllm.exports import VLLM_VERSION, make_command
    from eaglelocal.preparation.vllm.fleet_files import format_yaml

    if order.what == VLLM:
        return check_is_text(make_command(plan)) + "\n"
    documents = list_documents(order, plan)
    name = make_printable(plan.pair.target.id)
    head = f"# {name} in vLLM {VLLM_VERSION}, by eaglelocal export {order.what}\n"
    check_is_text(json.dumps(documents, ensure_ascii=False))
    return head + format_yaml(documents)


def list_documents(order: ExportFlags, plan: VllmPlan) -> list[dict[str, object]]:
    """Return the YAML documents of the file."""
    from eaglelocal.preparation.vllm.exports import make_compose_file, make_helm_values
    from eaglelocal.preparation.vllm.fleet_files import list_queue_objects, make_application_set

    if order.what == HELM:
        return [make_helm_values(plan, order.queue_name)]
    if order.what == ARGOCD:
        return [make_application_set(plan, order.queue_name)]
    if order.what == KUEUE:
        return list_queue_objects(plan, order.queue_name)
    draft = plan.pair.draft
    folder = locate_head(order, draft.head_file) if draft and draft.head_file and plan.schedule else None
    return [make_compose_file(plan, folder)]


def check_is_text(text: str) -> str:
    """Return the text. Raises UsageError if it names a file whose name is not UTF-8, which cannot be written."""
    if found := re.search(rf"[^\s\"']*{HALVES.pattern}[^\s\"']*", text):
        raise UsageError(f"the name {found[0]!r} is not UTF-8, so no other program can read it", hint="rename it")
    return text


def describe_plan(order: ExportFlags, plan: VllmPlan, text: str, notes: list[str]) -> dict[str, object]:
    fit, target = plan.fit, plan.pair.target
    draft = plan.pair.draft if plan.schedule else None
    return {
        "form": order.what,
        "target": {"id": target.id, "repo": target.pin.repo, "revision": target.pin.revision or None},
        "draft": draft
        and {
            "id": draft.id,
            "method": draft.method,
            "repo": draft.pin.repo if draft.pin else None,
            "revision": (draft.pin.revision or None) if draft.pin else None,
        },
        "schedule": [list(each) for each in plan.schedule],
        "device": fit.device.label,
        "cards": fit.num_cards,
        "slice": fit.slice or None,
        "ctx": fit.n_ctx,
        "max_num_seqs": fit.max_num_seqs,
        "bytes": {
            "target": fit.weights_bytes,
            "draft": fit.draft_bytes,
            "caches": fit.cache_bytes,
            "working": fit.working_bytes,
        },
        "notes": notes,
        "file": str(order.file) if order.file else None,
        "text": text,
    }


def check_values_file(form: str, name: str, *, as_json: bool) -> None:
    """Show what is wrong with Helm values or an ApplicationSet.

    Raises UsageError if the file cannot be read, IncompatibleError on problems.
    """
    from eaglelocal.catalog.catalog import load_catalog
    from eaglelocal.preparation.vllm.exports import list_problems
    from eaglelocal.preparation.vllm.fleet_files import list_set_problems

    if form not in (HELM, ARGOCD):
        raise UsageError(
            "only Helm values and an ApplicationSet can be checked",
            hint=f"eaglelocal export helm --check {quote_word(name)}",
        )
    output: Output = standard_output()
    check = list_problems if form == HELM else list_set_problems
    problems = list(check(read_values(expand_path(name)), load_catalog()))
    if as_json:
        output.object({"file": name, "problems": problems})
    elif not problems:
        output.data(f"{name}: target and draft belong together, and are pinned")
    if problems:
        *others, last = problems
        for problem in () if as_json else others:
            output.message(f"{name}: {problem}")
        more = f" (and {len(others)} more)" if others and as_json else ""
        raise IncompatibleError(f"{name}: {last}{more}", hint=f"eaglelocal export {form} TARGET --out FILE --force")


def read_values(path: Path) -> object:
    """Return the content of a YAML file. Raises UsageError if it is not one."""
    import yaml

    try:
        if path.stat().st_size > MAX_VALUES_BYTES:
            raise UsageError(f"{path} has more than {MAX_VALUES_BYTES >> 10} KiB")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
