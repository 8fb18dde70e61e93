"""Define the result of planning: values for the options that a person left open. The options are never changed."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.plan import NO_ROOM_FOR_IMAGES
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import RunOptions
from eaglelocal.hub.model_files import ModelFiles
from eaglelocal.planning.candidate import Candidate, offload_text
from eaglelocal.planning.eviction import Needs
from eaglelocal.planning.local_models import LocalModel

EMBEDDED = "demo"
DEFAULT_CTX = 4096  # if nothing was planned, because there is no GPU or the model is embedded


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice for each option that was left open; explicit options take precedence.

    chosen             the reference of the chosen model, if no target was named
    files              the files of the run; None: they are found when the plan is made
    models_on_disk     the models that the target was chosen among, if none was named
    candidate          how the model runs here; None: not planned, the defaults apply
    needs              the memory that it needs; empty: unknown
    without_draft      the reason why the draft on disk is not loaded; empty: it is, or there is none
    without_projector  whether the projector on disk is left out: memory is short, or it would cost too much speed
    swa_full           as in core/plan.py
    intro              what was chosen, for people
    fits               False if nothing is known to fit
    """

    options: RunOptions
    chosen: str = ""
    files: ModelFiles | None = None
    models_on_disk: tuple[LocalModel, ...] = ()
    candidate: Candidate | None = None
    needs: Needs = ()
    without_draft: str = ""
    without_projector: bool = False
    swa_full: bool | None = None
    intro: str = ""
    fits: bool = True

    @property
    def target(self) -> str:
        """Return the reference of the model."""
        return self.chosen or EMBEDDED if self.options.target is None else self.options.target

    @property
    def ctx(self) -> int | None:
        return (
            self.options.ctx if self.options.ctx is not None or self.candidate is None else self.candidate.setup.n_ctx
        )

    @property
    def kv_type(self) -> str | None:
        explicit = self.options.kv_type
        return explicit if explicit is not None or self.candidate is None else self.candidate.setup.kv_type

    @property
    def gpu_layers(self) -> int | None:
        """Return the layers on GPUs; None: all."""
        explicit = self.options.gpu_layers
        return explicit if explicit is not None or self.candidate is None else self.candidate.gpu_layers

    @property
    def n_cpu_moe(self) -> int | None:
        explicit = self.options.n_cpu_moe
        return explicit if explicit is not None or self.candidate is None else self.candidate.n_cpu_moe or None

    @property
    def note(self) -> str:
        """Return the unexpected part of the decision, for people; empty if there is none."""
        decided = "; ".join(self._unexpected())
        return f"{self.intro}{': ' if self.intro and decided else ''}{decided}"

    def _unexpected(self) -> Iterator[str]:
        options = self.options
        if self.candidate is None:
            return
        if (options.gpu_layers, options.n_cpu_moe) != (self.gpu_layers, self.n_cpu_moe):
            yield f"{offload_text(self.candidate)}: the GPU cannot hold all"
        if options.kv_type is None and self.kv_type not in (None, "f16"):
            yield f"a cache of {self.kv_type}, because memory is short"
        if self.without_projector:
            yield NO_ROOM_FOR_IMAGES
        if self.without_draft:
            yield self.without_draft
