"""Opens heads that replace the one in use while the engine runs.

They are opened in any thread, beside the steps, with the parameters of the first one, and need memory beside it for a
moment. What cannot replace it is refused here: only the weights may differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.device_memory import free_memory
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.model import D2T, LlamaModel
from eaglelocal.backend.weight_pages import moving_weights
from eaglelocal.core.byte_sizes import format_memory
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.head_holder import Exchangeable, HeadHolder, OpenHead
from eaglelocal.errors import IncompatibleError, ResourceError
from eaglelocal.gguf.draft_pairing import DraftInfo, read_draft
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import read_draft_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import find_upper_layers
from eaglelocal.loading.draft_loader import open_model_drafter
from eaglelocal.loading.model_loader import PlanLoader
from eaglelocal.memory.budget import RAM, FreeMemory, subtract_margins
from eaglelocal.memory.cache_bytes import cache_bytes
from eaglelocal.memory.contexts import plan_contexts
from eaglelocal.memory.placement import choose_gpus, place_layers
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import read_memory


def hold_head(loader: PlanLoader, drafters: Sequence[Drafter], opener: HeadOpener) -> tuple[Drafter, ...]:
    """Return the drafters, the last one so that its head can be exchanged if it is of a kind that can.

    `loader.opened` closes that head and nothing else.
    """
    part = loader.parts.draft
    if part is None or not drafters or not isinstance(part.info, EagleInfo | MedusaInfo):
        return tuple(drafters)
    *others, last = drafters
    if not isinstance(last, Exchangeable):
        return tuple(drafters)
    version = loader.parts.plan.draft_version
    head = OpenHead(drafter=last, close=loader.opened.close, path=part.header.path, version=version)
    return *others, HeadHolder(head, opener.open)


class HeadOpener:
    """Opens heads for the target's context."""

    def __init__(self, loader: PlanLoader, machine: Machine, target: LlamaModel, context: LlamaContext) -> None:
        self._loader, self._machine, self._target, self._context = loader, machine, target, context

    def open(self, path: Path, version: int) -> OpenHead:
        """Return the head in a file; it is not in use yet.

        Raises ModelFileError or IncompatibleError for a file that is damaged or differs in kind, ResourceError where a
        second head does not fit in memory.
        """
        part = self._make_part(read_header(path))
        self._check_memory(part)
        with contextlib.ExitStack() as opened:
            parts = dataclasses.replace(self._loader.parts, draft=part)
            loader = dataclasses.replace(self._loader, parts=parts, report=lambda progress: None, opened=opened)
            model = loader.load_model(part, 0.0, 1.0)
            drafter = open_model_drafter(loader, part, model, self._target, self._context)
            assert isinstance(drafter, Exchangeable)  # as the first one, whose kind it has
            opened.enter_context(moving_weights(model.mapped if part.placement.moves_weights else ()))
            return OpenHead(drafter=drafter, close=opened.pop_all().close, path=path, version=version)

    def _make_part(self, header: Header) -> DryRunPart:
        """Return the head with the parameters of the first one. Raises IncompatibleError where they do not suit it."""
        parts = self._loader.parts
        target, first = parts.target, parts.draft
        assert first is not None and isinstance(target.info, ModelInfo)
        info = read_draft(header, target_header=target.header, target=target.info, kind=parts.plan.draft_kind)
        if problem := find_difference(first.info, info) or find_other_tensors(first.header, header):
            raise IncompatibleError(
                f"{header.path.name} cannot replace the head in use: {problem}",
                hint="restart with it: `--draft HEAD.gguf`",
            )
        return dataclasses.replace(first, header=header, info=info)

    def _check_memory(self, part: DryRunPart) -> None:
        """Raise ResourceError if the head does not fit beside the one in use."""
        parts = self._loader.parts
        plan, shape = parts.plan, read_draft_shape(part.header, parts.plan.draft_kind)
        available_bytes = read_memory().available_bytes
        free = free_memory(self._loader.library, ram_bytes=available_bytes, unified=self._machine.lends_memory)
        gpus = choose_gpus(free, device=part.placement.devices, split=part.placement.split)
        device = place_layers(shape, gpus, part.placement.shares, gpu_layers=part.placement.gpu_layers)[-1]
        needed_bytes = shape.weights_bytes + cache_bytes(shape, plan_contexts(plan, parts.shape, shape)[1].sizes)
        usable_bytes = find_free_bytes(subtract_margins(free), device)
        if usable_bytes is not None and needed_bytes > usable_bytes:
            place = "in RAM" if device == RAM else f"on {device}"
            raise ResourceError(
                f"{format_memory(needed_bytes)} for a second head do not fit the {format_memory(usable_bytes)} "
                f"that are free {place}: the head in use stays",
                hint="restart with it: `--draft HEAD.gguf`",
            )


def find_free_bytes(free: Sequence[FreeMemory], device: str) -> int | None:
    return next((each.free_bytes for each in free if each.device == device), None)


def find_difference(first: DraftInfo, other: DraftInfo) -> str:
    """Return how another head differs in what the engine was built for; empty if only its weights may differ."""
    if isinstance(first, EagleInfo) and isinstance(other, EagleInfo):
        one, two = (first.mask is None, first.num_depths), (other.mask is None, other.num_depths)
    elif isinstance(first, MedusaInfo) and isinstance(other, MedusaInfo):
        one, two = (False, first.num_parts), (False, other.num_parts)
    else:
        return "it is of another kind"
    if first.target_layers != other.target_layers:
        return f"it reads the target's layers {other.target_layers}, not {first.target_layers}"
    if one != two:
        return "it drafts another number of tokens in one pass"
    return ""


def find_other_tensors(first: Header, other: Header) -> str:
    """Return how the tensors differ that decide where a head is placed; empty if they do not."""
    if (find_upper_layers(first) is None) != (find_upper_layers(other) is None):
        return "it has another number of layers"
    if (D2T in first.tensors) != (D2T in other.tensors):
        return "it drafts from another vocabulary"
    return ""
