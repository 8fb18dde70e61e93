"""The output of `eaglelocal import`: the head, its trial, its file. Pure: figures in, texts out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from eaglelocal.cli.head_trial import TrialOutcome, TriedReading
from eaglelocal.hub.heads.convert import HeadReading, ReadHead
from eaglelocal.hub.heads.medusa_head import MedusaHead
from eaglelocal.hub.target_resolver import FoundTarget

WIDTH = 80
LABEL = 9  # columns


def head_lines(head: ReadHead | MedusaHead, found: FoundTarget, warnings: tuple[str, ...]) -> list[str]:
    rows = [
        ("head", f"{head.name}: {name_kind(head)}, written by {name_dialect(head)}"),
        *(medusa_rows(head, found) if isinstance(head, MedusaHead) else eagle_rows(head, found)),
        ("target", found.label),
        *(("note", warning) for warning in warnings),
    ]
    return [line for label, text in rows for line in wrap_labelled(label, text)]


def eagle_rows(head: ReadHead, found: FoundTarget) -> Iterator[tuple[str, str]]:
    yield "layer", layer_line(head)
    yield "taps", f"layers {join_layers(head.stated.taps)} of {found.info.n_layer}, each {found.info.n_embd} wide"
    yield "tokens", token_line(head, found)
    yield "norms", norm_line(head)


def medusa_rows(head: MedusaHead, found: FoundTarget) -> Iterator[tuple[str, str]]:
    shape = head.shape
    biases = "biases" if head.tensors.biases else "no biases"
    layers = "one layer" if shape.num_layers == 1 else f"{shape.num_layers} layers"
    yield "heads", f"{shape.num_parts} of {layers}, {shape.state_width} wide, {biases}"
    drafted = found.info.n_vocab if head.target_tokens is None else len(head.target_tokens)
    output = {0: "the target's output", 1: "one output of its own"}.get(len(head.outputs), "an output for each head")
    yield "tokens", f"drafts {drafted} of {found.info.n_vocab}, with {output}"


def wrap_labelled(label: str, text: str) -> Iterator[str]:
    """Yield a text in lines of at most WIDTH columns, the label before the first."""
    wrapped = textwrap.wrap(text, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(wrapped):
        yield f"{label if number == 0 else '':<{LABEL}}{line}"


def name_dialect(head: ReadHead | MedusaHead) -> str:
    return head.tensors.dialect if isinstance(head, MedusaHead) else head.config.dialect


def name_kind(head: ReadHead | MedusaHead) -> str:
    if isinstance(head, MedusaHead):
        return "Medusa"
    if head.is_parallel:
        return "P-EAGLE"
    return "EAGLE-3.1" if head.fc_norm or head.config.norm_output else "EAGLE-3"


def layer_line(head: ReadHead) -> str:
    config = head.config
    window = f", attention window {config.window} tokens" if config.window else ""
    rope = config.rope.kind if config.rope.kind != "none" else "plain"
    layers = f"{config.num_layers} layers, " if config.num_layers > 1 else ""
    return (
        f"{layers}{config.width} wide, {config.n_head} heads of {config.head_dim} ({config.n_kv_head} for keys), "
        f"feed-forward {config.n_ff}, {rope} rope{window}"
    )


def token_line(head: ReadHead, found: FoundTarget) -> str:
    drafted = found.info.n_vocab if head.target_tokens is None else len(head.target_tokens)
    has = {
        "embeddings": not head.shares_embeddings,
        "output": head.tensors.get("lm_head.weight") is not None,
    }
    own = [word for word, is_own in has.items() if is_own]
    borrowed = [word for word in ("embeddings", "output") if word not in own]
    parts = [f"its own {' and '.join(own)}"] if own else []
    parts += [f"the target's {' and '.join(borrowed)}"] if borrowed else []
    return f"drafts {drafted} of {found.info.n_vocab}, with {', '.join(parts)}"


def norm_line(head: ReadHead) -> str:
    names = {
        "fc_norm": head.fc_norm,
        "norm_before_fc": head.norm_before_fc,
        "norm_before_residual": head.stated.norm_before_residual,
        "norm_output": head.config.norm_output,
    }
    given = [name for name, is_set in names.items() if is_set]
    return f"{', '.join(given) or 'none of its own'} (as its configuration says)"


def trial_lines(outcome: TrialOutcome | None, path: Path) -> list[str]:
    if outcome is None:
        lines = list(wrap_labelled("trial", "none: its configuration is trusted"))
    else:
        lines = [f"{'trial':<{LABEL}} first accepted  acceptance length  drafts  read as"]
        lines += [trial_line(tried, outcome) for tried in outcome.tried]
        lines += wrap_labelled("verdict", describe_verdict(outcome))
    return [*lines, *wrap_labelled("file", f"{path} ({path.stat().st_size / 1e6:.1f} MB)")]


def trial_line(tried: TriedReading, outcome: TrialOutcome) -> str:
    figures, mark = tried.figures, "*" if tried is outcome.best else " "
    reading = describe_reading(tried.reading, outcome)
    return f"{'':<{LABEL}}{mark}{figures.first:>14.1%}{figures.length:>19.2f}{figures.drafts:>8}  {reading}"


def describe_verdict(outcome: TrialOutcome) -> str:
    if outcome.best.reading is None:
        return "it predicts this target"
    reading = describe_reading(outcome.best.reading, outcome)
    alike = "; pre-norm and post-norm are accepted equally well" if outcome.is_tie else ""
    if outcome.is_as_stated:
        return f"as its configuration says: {reading}{alike}"
    return f"different from its configuration: {reading}{alike}"


def describe_reading(reading: HeadReading | None, outcome: TrialOutcome) -> str:
    """Return a reading in words: the norm, and whatever else differs between the readings that were tried."""
    others = [tried.reading for tried in outcome.tried if tried.reading is not None]
    if reading is None:
        return "it is published"
    parts = ["post-norm" if reading.norm_output else "pre-norm"]
    if any(other.taps != reading.taps for other in others):
        parts.append(f"taps {join_layers(reading.taps)}")
    if any(other.norm_before_residual != reading.norm_before_residual for other in others):
        parts.append(f"residual {'after' if reading.norm_before_residual else 'before'} its norm")
    return ", ".join(parts)


def join_layers(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))


def report_object(
    head: ReadHead | MedusaHead,
    found: FoundTarget,
    outcome: TrialOutcome | None,
    warnings: tuple[str, ...],
    path: Path,
) -> dict[str, object]:
    return {
        "head": {
            "name": head.name,
            "kind": name_kind(head),
            "dialect": name_dialect(head),
            "draft_vocab": None if head.target_tokens is None else len(head.target_tokens),
            **(medusa_object(head) if isinstance(head, MedusaHead) else eagle_object(head, outcome)),
        },
        "target": found.label,
        "trial": None if outcome is None else [tried_object(tried, outcome) for tried in outcome.tried],
        "as_stated": outcome is None or outcome.is_as_stated,
        "notes": list(warnings),
        "file": str(path),
        "file_bytes": path.stat().st_size,
    }


def eagle_object(head: ReadHead, outcome: TrialOutcome | None) -> dict[str, object]:
    reading = head.stated if outcome is None else outcome.best.reading
    flags = {"fc_norm": head.fc_norm, "norm_before_fc": head.norm_before_fc}
    return {"layers": head.config.num_layers, **flags, **reading_object(reading)}


def medusa_object(head: MedusaHead) -> dict[str, object]:
    return {"heads": head.shape.num_parts, "layers": head.shape.num_layers, "outputs": len(head.outputs)}


def reading_object(reading: HeadReading | None) -> dict[str, object]:
    if reading is None:
        return {}
    return {
        "taps": list(reading.taps),
        "norm_before_residual": reading.norm_before_residual,
        "norm_output": reading.norm_output,
    }


def tried_object(tried: TriedReading, outcome: TrialOutcome) -> dict[str, object]:
    figures = tried.figures
    return {
        **reading_object(tried.reading),
        "chosen": tried is outcome.best,
        "drafts": figures.drafts,
        "accepted_per_position": list(figures.accepted_per_position),
        "first_acceptance": figures.first,
        "acceptance_length": figures.length,
        "commonest_token_share": figures.commonest_share,
    }
