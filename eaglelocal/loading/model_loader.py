"""Loads the models of a fitted plan and opens their readers. Registers each on a stack that closes it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.image_encoder import LlamaImageReader, ReaderParams
from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.events import LoadProgress, Report
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.architectures import FinalState
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.projector import max_image_tokens, read_projector_kind
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.gguf.upper_layers import find_upper_layers
from eaglelocal.loading.fit import FittedPlan
from eaglelocal.processes.this_process import BackgroundWork

TARGET_SHARE = 0.9  # of the progress that is reported; the draft has the rest
ROW_END = "v.token_embd.img_break"  # tensor of projectors like Pixtral's


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLoader:
    """The fitted plan and the resources for loading it; `opened` closes everything in reverse order."""

    parts: FittedPlan
    library: LlamaLibrary
    threads: int
    report: Report
    opened: contextlib.ExitStack

    def load_target(self) -> LlamaModel:
        """Load the target, and its LoRA adapters: contexts that are opened later can apply them."""
        model = self.load_model(self.parts.target, 0.0, TARGET_SHARE)
        model.load_adapters([adapter.path for adapter in self.parts.plan.adapters])
        return model

    def load_draft(self, target: LlamaModel) -> LlamaModel | None:
        """Load and return the draft's model: the target if its file has the MTP layers, None without a draft file."""
        part = self.parts.draft
        if part is None or not self.parts.plan.speculates:
            return None
        is_in_target = isinstance(part.info, MtpInfo) and part.header.path == target.path
        return target if is_in_target else self.load_model(part, TARGET_SHARE, 1.0)

    def load_model(self, part: DryRunPart, first: float, last: float) -> LlamaModel:
        """Load a model, while the reported progress goes from `first` to `last`."""
        path = part.header.path
        self.report(LoadProgress(first, path.name))

        def report_fraction(fraction: float) -> None:
            self.report(LoadProgress(first + fraction * (last - first), path.name))

        layers = find_upper_layers(part.header)
        model = LlamaModel(self.library, path, part.placement, layers=layers, on_progress=report_fraction)
        self.opened.callback(model.close)
        self.opened.callback(model.constraints.close)
        return model

    def open_target_context(self, model: LlamaModel, info: ModelInfo) -> LlamaContext:
        part = self.parts.target
        by_nextn = info.final_state is FinalState.NEXTN or self.parts.plan.draft_kind == "mtp"
        context = LlamaContext(
            model,
            part.context,
            taps=part.taps,
            final_by_nextn=by_nextn,
            normed_by_nextn=info.gives_normed_rows,
            is_asynchronous=self.parts.has_gpu_layers,
        )
        self.opened.callback(context.close)
        if self.parts.uses_gpu and part.taps:
            context.run_once()  # allocate tap buffers before the draft is loaded: a later decode could not
        return context

    def prepare_constraints(self, model: LlamaModel, preparation: BackgroundWork) -> None:
        """Begin to scan the vocabulary for constraints.

        It takes a second or more, half of it holding the GIL: too long for the first constrained answer, and it would
        delay the start.
        """
        self.opened.callback(preparation.wait, None)
        if self.parts.plan.binds_answers:
            preparation.begin(model.constraints.prepare)

    def open_image_reader(self, model: LlamaModel) -> tuple[LlamaImageReader | None, str]:
        """Return the image reader, or None and the reason.

        A projector that the user did not ask for must not keep the model from loading.
        """
        plan = self.parts.plan
        if plan.projector is None:
            return None, plan.projector_note
        try:
            return self._open_projector(model, plan.projector), ""
        except EagleLocalError as error:
            if plan.is_projector_required:
                raise
            return None, f"no images: {error.message}"

    def _open_projector(self, model: LlamaModel, projector: Path) -> LlamaImageReader:
        plan = self.parts.plan
        self.report(LoadProgress(1.0, projector.name))
        header = read_header(projector)
        kind = read_projector_kind(header)
        params = ReaderParams(
            threads=self.threads,
            on_gpu=self.parts.uses_gpu and not plan.rpc,  # llama.cpp could take a server's device
            n_batch=plan.n_batch,
            device=plan.device,
            row_end=read_tensor(header, ROW_END) if ROW_END in header.tensors else None,
            max_tokens=max_image_tokens(kind, n_ctx=plan.n_ctx, n_batch=plan.n_batch),
        )
        reader = LlamaImageReader(self.library, model, projector, params)
        self.opened.callback(reader.close)
        return reader
