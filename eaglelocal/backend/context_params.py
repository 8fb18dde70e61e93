"""The parameters of a llama.cpp context, and opening one."""

from __future__ import annotations

from eaglelocal.backend.model import LlamaModel, look_up
from eaglelocal.backend.native_step import fill_struct
from eaglelocal.backend.weight_loading import UpperWeights
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import KV_TYPES, split_kv_type, suggest_smaller_ctx
from eaglelocal.errors import EngineError, ResourceError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME

KV_TYPE_IDS = {name: GGML_TYPES_BY_NAME[name.upper()].id for name in KV_TYPES}  # ggml_type
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParams:
    """The sizes of a context. `n_ctx` counts positions per sequence.

    swa_full       layers with a sliding window keep all positions, so that a cache can be cut anywhere
    num_snapshots  earlier recurrent states kept of each sequence
    """

    n_ctx: int
    num_sequences: int = 1
    num_branches: int = 0  # more sequences, which share cells of the first ones; unified only
    unified: bool = True  # one cache for all sequences, else one for each
    n_batch: int = 512
    max_outputs: int | None = None  # output rows of one decode; None: as many as rows
    threads: int = 1
    kv_type: str = "f16"
    flash_attn: str = "auto"
    swa_full: bool = True
    num_snapshots: int = 0
    is_mtp: bool = False  # a context of the MTP layer alone

    def __post_init__(self) -> None:
        if self.num_branches and self.num_ids > self.num_outputs:  # llama.cpp would abort
            raise EngineError(f"{self.num_ids} sequences need as many output rows, not {self.num_outputs}")

    @property
    def num_ids(self) -> int:
        """The number of sequences that rows may belong to."""
        return self.num_sequences + self.num_branches

    @property
    def num_outputs(self) -> int:
        return self.n_batch if self.max_outputs is None else min(self.max_outputs, self.n_batch)


def create_context(model: LlamaModel | UpperWeights, params: ContextParams, *, other: object | None = None) -> object:
    """Return a new llama_context; a head borrows from the context `other`.

    Raises ResourceError with llama.cpp's own message.
    """
    optional: dict[str, object] = {}
    if params.max_outputs is not None:
        optional["n_outputs_max"] = params.num_outputs
    if params.is_mtp:
        optional["ctx_type"] = model.library.api.LLAMA_CONTEXT_TYPE_MTP
    if other is not None:
        optional["ctx_other"] = other
    return open_context(
        model,
        f"of {params.num_sequences} x {params.n_ctx} positions",
        suggest_smaller_ctx(params.n_ctx, params.num_sequences),
        n_ctx=params.n_ctx * params.num_sequences,
        n_batch=params.n_batch,
        n_seq_max=params.num_ids,
        n_threads=params.threads,
        **look_up_kv_types(params.kv_type),
        flash_attn_type=look_up(FLASH_ATTENTION, params.flash_attn, "--flash-attn"),
        kv_unified=params.unified,
        swa_full=params.swa_full,
        n_rs_seq=params.num_snapshots,
        **optional,
    )


def look_up_kv_types(kv_type: str) -> dict[str, int]:
    keys, values = (look_up(KV_TYPE_IDS, name, "--kv-type") for name in split_kv_type(kv_type))
    return {"type_k": keys, "type_v": values}


def open_context(model: LlamaModel | UpperWeights, size: str, hint: str, **fields: object) -> object:
    """Return a new llama_context with these parameters. Raises ResourceError with llama.cpp's own message.

    A batch is one pass. Prompts and steps use equally many threads.
    """
    api, log = model.library.api, model.library.log
    native = fill_struct(
        api.llama_context_default_params(),
        n_ubatch=fields["n_batch"],
        n_threads_batch=fields["n_threads"],
        no_perf=True,
        **fields,
    )
    log.begin()
    handle = api.llama_init_from_model(model.handle, native)
    if not handle:
        raise ResourceError(f"llama.cpp cannot make a context {size}: {log.reason()}", hint=hint)
    return handle
