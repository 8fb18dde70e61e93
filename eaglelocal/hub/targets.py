"""A target reference -> its file, its header and a label for people.

Understands `demo`, `demo@SIZE[:TYPE]`, `demo@native` and paths; other references are refused with what is
understood. Does not know drafts, except that the embedded model comes with its head.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from eaglelocal import locations
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.files import existing_file, gguf_names, looks_like_path
from eaglelocal.hub.inflate import Progress, inflate, parse_demo_reference

NATIVE = "demo@native"
UNDERSTOOD = "`demo`, `demo@SIZE[:TYPE]` such as `demo@1b:bf16`, `demo@native`, or the path of a .gguf file"
EXAMPLES = ("demo", NATIVE, "demo@1b", "demo@1b:bf16", "demo@8b:q4_0")
MAX_LABEL_CHARS = 80
NOT_TARGETS = {
    "eagle3": "is a draft head, not a model that can answer",
    "clip": "is an image encoder, not a model that can answer",
}


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """A target on disk. `head` is the draft head that belongs to it, where one is known."""

    path: Path
    label: str
    header: Header
    info: ModelInfo
    head: Path | None = None


def find_target(reference: str, *, on_progress: Progress) -> FoundTarget:
    """Raises UsageError on a reference that is not understood, ModelFileError on a bad file."""
    if reference == NATIVE:
        target, head = demo_sources()
        return read_target(target, label="embedded guide (native size)", head=head)
    if reference == "demo" or reference.startswith("demo@"):
        return _inflated(reference, on_progress)
    if looks_like_path(reference):
        return read_target(existing_file(reference))
    raise unknown_reference(reference)


def read_target(path: Path, *, label: str = "", head: Path | None = None) -> FoundTarget:
    header = read_header(path)
    architecture = str(header.metadata.get("general.architecture"))
    if architecture in NOT_TARGETS:
        raise ModelFileError(f"{path.name} {NOT_TARGETS[architecture]}", hint="give it as `--draft`, or another target")
    info = ModelInfo.from_header(header)
    return FoundTarget(path, label or label_of(info.name, path), header, info, head)


def demo_sources() -> tuple[Path, Path]:
    """The embedded target and head as they are shipped."""
    folder = locations.profiles_dir() / "demo"
    target, head = folder / "guide-target.gguf", folder / "guide-head.gguf"
    for path in (target, head):
        if not path.is_file():
            raise ModelFileError(f"the embedded model lacks {path.name}", hint="install eaglelocal again")
    return target, head


def label_of(name: str, path: Path) -> str:
    """What the file calls itself, then its own name; only characters that a terminal shows."""
    shown = "".join(char for char in name if char.isprintable()).strip()[:MAX_LABEL_CHARS]
    return f"{shown} ({path.name})" if shown and shown != path.stem else path.name


def unknown_reference(reference: str) -> UsageError:
    if "/" in reference or ":" in reference:
        message = f"cannot use the target {reference!r}: models of a hub or a profile are not available yet"
    else:
        message = f"unknown target {reference!r}"
    near = difflib.get_close_matches(reference, [*EXAMPLES, *gguf_names(Path())], n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    return UsageError(message, hint=f"{guess}understood are {UNDERSTOOD}")


def _inflated(reference: str, on_progress: Progress) -> FoundTarget:
    size = parse_demo_reference(reference)
    source_target, source_head = demo_sources()
    paths = inflate(
        size,
        source_target=source_target,
        source_head=source_head,
        folder=locations.generated_models_dir(),
        on_progress=on_progress,
    )
    label = f"embedded guide at the cost of a {size.label} model ({size.type})"
    return read_target(paths.target, label=label, head=paths.head)
