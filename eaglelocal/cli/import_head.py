"""`eaglelocal import`: convert a published EAGLE, P-EAGLE or Medusa head to a GGUF that `--draft auto` finds.

Reads, checks, writes and tries the head; a head that predicts its target too badly is not kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.load_model import LoadingEngine, load_settings, make_run_options, plan_run
from eaglelocal.cli.output import LABEL, Output, shown_progress, standard_output
from eaglelocal.conversation.session import ChatClient
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.user_paths import expand_path, quote_path, quote_word
from eaglelocal.errors import IncompatibleError, ModelFileError, UsageError

if TYPE_CHECKING:
    from eaglelocal.cli.head_trial import TrialOutcome
    from eaglelocal.gguf.writer import KeyValue, StreamedTensor
    from eaglelocal.hub.heads.convert import ReadHead
    from eaglelocal.hub.heads.medusa_head import MedusaHead
    from eaglelocal.hub.target_resolver import FoundTarget
    from eaglelocal.settings import Settings


@flags.takes("target", *flags.MACHINE, before="as_json")
def import_head(
    context: typer.Context,
    head: Annotated[
        str,
        typer.Argument(metavar="HEAD", help="Folder with config.json and weights, or user/repo in the hub's cache."),
    ],
    out: flags.HeadOut = None,
    type: flags.HeadType = "bf16",
    no_trial: Annotated[
        bool, typer.Option("--no-trial", help="Trust the head's configuration: do not try it on the target.")
    ] = False,
    as_json: flags.AsJson = False,
) -> None:
    """Convert a published EAGLE or Medusa head for your target.

    Reads EAGLE-3, 3.1 and P-EAGLE heads of SafeAILab, SpecForge, speculators, AngelSlim, ModelOpt and NeMo, and Medusa
    heads, checks them against the target, writes a GGUF file and tries it on about 2000 tokens.

    \b
    eaglelocal import ./EAGLE3-Qwen3-8B --target ./Qwen3-8B-Q4_K_M.gguf
    """
    from eaglelocal.cli.head_trial import head_lines, report_object, trial_lines
    from eaglelocal.hub.heads.head_store import make_head_path, write_head_file

    settings = load_settings(context.params)
    output = standard_output(colour=settings.colour)
    check_head_flags(settings.target, type, hint="eaglelocal import HEAD --target FILE.gguf")
    found = find_head_target(settings, output)
    read = read_source_head(head, found, settings)
    default_path = make_head_path(found.info, read.name, type)
    path = resolve_out(out, default_path.name) if out else default_path
    show_writing = show_fraction(output, "writing the head")
    with write_head_file(path, *convert_head(read, found, type), on_progress=show_writing) as partial:
        warnings = (*read.notes, *check_written(partial, read, found))
        output.report(head_lines(read, found, warnings), beside_object=as_json)
        outcome = None if no_trial else try_head(partial, read, found, settings, output)
    output.report(trial_lines(outcome, path), beside_object=as_json)
    command = make_chat_command(settings.target or "", found, path)
    output.report([f"{'next':<{LABEL}}{command}"], beside_object=as_json)
    if as_json:
        output.object({**report_object(read, found, outcome, warnings, path), "next": command})


def check_head_flags(target: str | None, kind: str, *, hint: str) -> None:
    """Raise UsageError if there is no target, or `kind` is no type of weights."""
    if target is None:
        raise UsageError("--target is missing: a head drafts for one model", hint=hint)
    if kind not in flags.HEAD_TYPES:
        raise UsageError(f"--type must be one of {', '.join(flags.HEAD_TYPES)}, not {kind!r}")


def resolve_out(out: str, name: str) -> Path:
    """Return the file of --out; if that is a folder, the file `name` in it.

    Raises UsageError if it exists and is not a head.
    """
    path = expand_path(out)
    path = path / name if path.is_dir() else path
    if path.exists() and not is_head(path):
        what = f"{path} exists and is not a head"
        raise UsageError(what, hint=f"--out {quote_path(path.with_name(f'{path.stem}-head.gguf'))}")
    return path


def is_head(path: Path) -> bool:
    from eaglelocal.gguf.reader import read_header

    try:
        return read_header(path).metadata.get("general.architecture") == "eagle3"
    except ModelFileError:
        return False


def find_head_target(settings: Settings, output: Output) -> FoundTarget:
    """Find the target and read its header. Raises IncompatibleError if nothing can draft for it."""
    from eaglelocal.gguf.draft_pairing import state_problem
    from eaglelocal.hub.model_library import locate_reference
    from eaglelocal.hub.target_resolver import find_target

    reference = locate_reference(settings.target or "", settings.model_folders)
    with shown_progress(output) as show:
        found = find_target(reference, on_progress=show)
    check_head_problem(state_problem(found.info), found, settings)
    return found


def check_head_problem(problem: str, found: FoundTarget, settings: Settings) -> None:
    """Raise IncompatibleError if there is a reason why no head can draft for the target."""
    if problem:
        raise IncompatibleError(
            f"no head can draft for {found.label}: {problem}",
            hint=f"eaglelocal chat --target {quote_word(settings.target or found.label)} --draft ngram",
        )


def check_layer_inputs(found: FoundTarget, settings: Settings) -> None:
    """Raise IncompatibleError if the target cannot give the layer inputs that EAGLE heads read."""
    from eaglelocal.gguf.head_info import layer_inputs_problem

    check_head_problem(layer_inputs_problem(found.info), found, settings)


def read_source_head(reference: str, found: FoundTarget, settings: Settings) -> ReadHead | MedusaHead:
    from eaglelocal.hub.heads.convert import read_head
    from eaglelocal.hub.heads.head_folder import find_published_folder, read_published
    from eaglelocal.hub.heads.medusa_head import is_medusa_head, read_medusa_head

    folder, name = find_published_folder(reference)
    published = read_published(folder)
    if is_medusa_head(published):
        return read_medusa_head(published, found.info, name=name)
    check_layer_inputs(found, settings)
    return read_head(published, found.info, name=name)


def convert_head(
    read: ReadHead | MedusaHead, found: FoundTarget, kind: str
) -> tuple[list[KeyValue], list[StreamedTensor]]:
    from eaglelocal.hub.heads import medusa_head
    from eaglelocal.hub.heads.convert import make_entries, make_tensors

    if isinstance(read, medusa_head.MedusaHead):
        entries = medusa_head.make_entries(read, found.info, kind)
        return entries, medusa_head.make_tensors(read, found.info, kind)
    return make_entries(read, read.stated, found.info, kind), make_tensors(read, found.info, kind)


def check_written(path: Path, read: ReadHead | MedusaHead, found: FoundTarget) -> tuple[str, ...]:
    """Check the written head as the engine will when it loads it, and return warnings.

    Raises IncompatibleError if it does not fit the target.
    """
    from eaglelocal.gguf.draft_pairing import draft_warnings, is_same_model, read_draft
    from eaglelocal.gguf.reader import read_header

    warnings = draft_warnings(read_draft(read_header(path), found.info), found.info)
    verifier = read.verifier
    if verifier and not is_same_model(verifier, found.info.name):
        return (*warnings, f"it was trained for {verifier}, but the target is named {found.info.name}")
    return warnings


def try_head(
    path: Path, read: ReadHead | MedusaHead, found: FoundTarget, settings: Settings, output: Output
) -> TrialOutcome:
    from eaglelocal.cli.head_trial import DRAFT_LENGTH, HeadTrial
    from eaglelocal.gguf.writer import AS_IN_FILE

    options = dataclasses.replace(
        make_run_options(settings),
        draft=str(path.resolve()),
        draft_type=AS_IN_FILE,
        spec=DRAFT_LENGTH,
        mmproj="none",
        parallel=1,
    )

    def open_engine(_: Path) -> ChatClient:
        return LoadingEngine(plan_run(options, output)).wait(output)[0]

    with shown_progress(output) as show:
        trial = HeadTrial(
            path,
            read,
            has_template=found.info.chat_template is not None,
            open_engine=open_engine,
            on_progress=show,
        )
        return trial.run()


def show_fraction(output: Output, what: str) -> Callable[[float], None]:
    """Return a callback that shows a progress bar for fractions from 0 to 1."""
    progress = output.progress()

    def show(fraction: float) -> None:
        progress(LoadProgress(fraction, what))
        if fraction >= 1.0:
            progress.finish()

    return show


def make_chat_command(target: str, found: FoundTarget, head: Path) -> str:
    """Return the command that chats with a new head. It names the head only where `--draft auto` takes another."""
    from eaglelocal.hub.draft_resolver import find_draft

    auto = find_draft("auto", found).path
    is_auto = auto is not None and auto.resolve() == head.resolve()
    flag = "" if is_auto else f" --draft {quote_path(head)}"
    return f"eaglelocal chat --target {quote_path(target)}{flag}"
