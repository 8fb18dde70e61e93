"""What a run of `eaglelocal train` is about, as far as the command line says it, and whether there is room for it.

Whatever would only fail after hours of asking or learning is refused here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli.import_head import asked_place, find
from eaglelocal.cli.loading import options_of, plan_run
from eaglelocal.cli.output import Output
from eaglelocal.errors import UsageError
from eaglelocal.talk.session import Choice

if TYPE_CHECKING:
    from eaglelocal.core.plan import Plan
    from eaglelocal.hub.targets import FoundTarget
    from eaglelocal.settings import Settings
    from eaglelocal.training.pupil import School

DEFAULT_CTX = 2048


@dataclasses.dataclass(frozen=True, slots=True)
class Lessons:
    """Of a run; what comes of it is elsewhere."""

    found: FoundTarget
    school: School
    rival: str | None  # the draft that is used now, or that it goes on from; what comes out must be better
    settings: Settings
    output: Output
    folder: Path
    device: str  # torch's
    path: Path  # of the head that comes out
    is_named: bool  # by --out: it is written even if it is no better
    kind: str  # of its weights

    def plan(self, draft: str, *, ctx: int, parallel: int = 1, spec: str | int = "auto") -> Plan:
        """`draft` as --draft takes it; a head just as its file has it."""
        from eaglelocal.gguf.lighter import AS_IN_FILE

        options = options_of(self.settings, Choice(), parallel=parallel)
        options = dataclasses.replace(options, mmproj="none", draft=draft, draft_type=AS_IN_FILE, ctx=ctx, spec=spec)
        return plan_run(options, self.output)

    def reading_plan(self) -> Plan:
        """Of the target, as it reads beside learning."""
        return self.plan("none", ctx=self.ctx, spec="off")

    @property
    def ctx(self) -> int:
        """Tokens of a conversation."""
        return min(self.settings.ctx or DEFAULT_CTX, self.found.info.context_length or DEFAULT_CTX)


def lessons_of(
    settings: Settings, output: Output, device: str, *, start: str, work: str | None, out: str | None, kind: str
) -> Lessons:
    found = find(settings, output)
    school = school_of(start, found)
    folder = Path(work).expanduser() if work else locations.training_dir() / digest_of([str(found.path.resolve())])
    return Lessons(
        found=found,
        school=school,
        rival=draft_there(start, found),
        settings=settings,
        output=output,
        folder=folder,
        device=device,
        path=path_of(school, kind, out),
        is_named=out is not None,
        kind=kind,
    )


def school_of(start: str, found: FoundTarget) -> School:
    """With the head to go on from: the one that is named, or the one that `--draft auto` takes; none: a new one.

    Raises IncompatibleError where it cannot be trained, before the target is asked anything.
    """
    from eaglelocal.gguf.eagle_info import EagleInfo
    from eaglelocal.gguf.reader import read_header
    from eaglelocal.hub.drafts import find_draft
    from eaglelocal.training.pupil import School, head_shape

    school = School(found.header, found.info)
    draft = None if start == "none" else find_draft(start, found)
    if draft is not None and draft.kind == "eagle3" and draft.path is not None:
        header = read_header(draft.path)
        school = dataclasses.replace(school, start=header, start_info=EagleInfo.from_header(header))
    elif start not in ("auto", "none"):
        raise UsageError(f"--from {start} is no EAGLE head", hint="a head in GGUF, or `--from none`")
    head_shape(school, max_context=1)
    return school


def draft_there(start: str, found: FoundTarget) -> str | None:
    """What a new head is compared with: what `--draft auto` takes, for which it would stand. Lookups go on beside."""
    from eaglelocal.hub.drafts import find_draft

    draft = find_draft("auto" if start == "none" else start, found)
    if draft.path is None:
        return None
    return "mtp" if draft.kind == "mtp" else str(draft.path.resolve())


def path_of(school: School, kind: str, out: str | None) -> Path:
    """Where the head will lie. Raises UsageError or ResourceError where it cannot: now, not after hours."""
    from eaglelocal.hub.heads.store import check_writable, place_of
    from eaglelocal.training.pupil import name_of

    place = place_of(school.target, school.info, name_of(school), kind)
    path = asked_place(out, place.name) if out else place
    check_writable(path)
    return path


def check_there_is_room(lessons: Lessons) -> None:
    """Before the target is asked anything. Raises ResourceError with the sum."""
    from eaglelocal.catalog.catalog import load
    from eaglelocal.gguf.shape import shape_of
    from eaglelocal.planner.memory import estimate, safe_rooms
    from eaglelocal.planning.autoplan import this_rig
    from eaglelocal.probe.probe import free_bytes
    from eaglelocal.training.lessons import Unrolling
    from eaglelocal.training.room import check_disk, check_room, need_of

    need = need_of(lessons.school, Unrolling(), max_tokens=lessons.ctx, device=lessons.device)
    check_disk(need, lessons.folder, free_bytes(lessons.folder))
    rooms = this_rig(load()).rooms
    held = estimate(lessons.reading_plan(), shape_of(lessons.found.header), None, rooms)
    check_room(need, held, safe_rooms(rooms), lessons.device)


def digest_of(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
