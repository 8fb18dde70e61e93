"""The options of a run as the user gave them, each named as its flag.

Planning reads them, and decides in a `Plan` what they leave open. Nothing is written back to them.
"""

from __future__ import annotations

from eaglelocal.core.adapters import MAX_ADAPTERS, AdapterFile, parse_adapter
from eaglelocal.core.gpu_split import TENSOR, parse_split
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import parse_spec
from eaglelocal.errors import UsageError

AUTO, NONE, NGRAM = "auto", "none", "ngram"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of one run; None and "auto" leave the choice to planning.

    target      a reference; None: the best model on disk, else the embedded one
    mmproj      auto, none, or the path of a projector for images
    draft       the model that drafts: auto, mtp, none, an entry of the catalog, the path of a .gguf, or ngram: no model
    lookups     the drafters without a model, beside it or alone: ngram, lookahead (see draft_sources.py)
    draft_type  of a head's weights: auto, q4_0, q8_0, or file
    lora        LoRA adapters of the target: FILE or FILE:SCALE
    spec        auto, off, pid, or a number of draft tokens
    ctx         tokens of each slot
    parallel    slots
    gpu_layers  as llama.cpp counts them: the output layer is one
    n_cpu_moe   layers whose experts stay in RAM
    split       layer, tensor, row, none, or the shares of the GPUs, as 3,1
    rpc         addresses of rpc-servers that hold layers
    goal        speed, balanced or quality: the criterion that counts most for the choice of a model
    cache_ram   MiB of RAM for conversations that were evicted from their slot; None: by free memory
    lookup_memory  tokens of each owner's texts that are kept on disk for lookups; 0: none
    cache_disk  GB on disk for the caches of conversations, which then survive a restart; 0: none
    binds_answers  prepare grammars while loading, not with the first answer that needs them
    is_brief    the model is loaded for one answer, so that loading time counts as much as speed
    learns      a head's current learned version drafts, and goes on learning
    model_folders  folders of the user's own models, whose names a target may be
    """

    target: str | None = None
    mmproj: str = AUTO
    draft: str = AUTO
    lookups: tuple[str, ...] = (NGRAM,)
    draft_type: str = AUTO
    lora: tuple[str, ...] = ()
    spec: str | int = AUTO
    ctx: int | None = None
    parallel: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    device: str | None = None
    split: str = "layer"
    rpc: tuple[str, ...] = ()
    kv_type: str | None = None
    flash_attn: str = AUTO
    goal: str = "balanced"
    cache_ram: int | None = 0
    lookup_memory: int = 0
    cache_disk: float = 0.0
    binds_answers: bool = False
    is_brief: bool = False
    learns: bool = False
    model_folders: tuple[str, ...] = ()

    @property
    def drafts(self) -> bool:
        """Return whether drafting is on. Raises UsageError for an invalid `spec`."""
        return self.draft != NONE and parse_spec(self.spec).max_draft > 0

    def check_cache(self) -> None:
        """Raise UsageError for a cache that llama.cpp refuses with this flash attention or split."""
        if self.flash_attn == "off" and self.kv_type not in (None, "f16"):
            raise UsageError(f"--kv-type {self.kv_type} needs flash attention", hint="--flash-attn auto")
        if self.split_mode != TENSOR:
            return
        if self.flash_attn == "off":
            raise UsageError("--split tensor needs flash attention", hint="--flash-attn auto")
        if self.kv_type not in (None, "f16"):
            raise UsageError(f"--split tensor cannot divide a cache of type {self.kv_type}", hint="--kv-type f16")
        if self.rpc:
            raise UsageError("--split tensor divides layers among this machine's GPUs, not --rpc", hint="--split layer")

    @property
    def adapters(self) -> tuple[AdapterFile, ...]:
        """Return the LoRA adapters. Raises UsageError."""
        if len(self.lora) > MAX_ADAPTERS:
            raise UsageError(f"--lora names {len(self.lora)} adapters: at most {MAX_ADAPTERS} can be loaded")
        try:
            return tuple(map(parse_adapter, self.lora))
        except ValueError as error:
            raise UsageError(f"--lora must be {error}") from None

    @property
    def names_draft(self) -> bool:
        """Return whether a certain draft is named, which is used even if it is not predicted to pay off."""
        return self.draft not in (AUTO, NONE, NGRAM)

    @property
    def split_mode(self) -> str:
        """Return layer, tensor, row or none. Raises UsageError."""
        return self._split()[0]

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the share of each GPU; empty: by their free memory. Raises UsageError."""
        return self._split()[1]

    def _split(self) -> tuple[str, tuple[float, ...]]:
        try:
            return parse_split(self.split)
        except ValueError as error:
            raise UsageError(f"--split must be {error}, not {self.split}") from None
