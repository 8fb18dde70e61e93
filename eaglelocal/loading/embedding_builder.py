"""Build an EmbeddingEngine from a Plan: the composition root of embedding models and rerankers.

Runs in the engine's process, which gets it as `eaglelocal.loading.embedding_builder:build`.

The model's file must name its pooling (`ARCHITECTURE.pooling_type`): without it, vectors are meaningless.
"""

from __future__ import annotations

import contextlib
import time

from eaglelocal.backend.embedding_context import EmbeddingContext, EmbeddingParams
from eaglelocal.backend.llama_library import LlamaLibrary, free_memory, load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.vocabulary import LlamaVocabulary
from eaglelocal.core.events import EngineInfo, LoadProgress, Report
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.engine.embedding_engine import EmbeddingEngine
from eaglelocal.engine.input_queue import start_executors
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.architectures import read_task
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import describe_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.context_parts import make_placement
from eaglelocal.loading.fit import check_experts
from eaglelocal.memory.budget import RAM, AdjustableSizes, Buffer, MemoryKind, check_fits, join_devices, minimum_buffers
from eaglelocal.memory.cache_bytes import CacheParams
from eaglelocal.memory.contexts import logits_bytes
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import probe
from eaglelocal.text.templates.rerank_pairs import Pairs, frame_pairs, write_pairs

MAX_TEXTS = 64  # of a pass
CLASSIFIERS = ("cls.weight", "cls.output.weight")  # tensors of a reranker; one suffices
SOFTMAX = ("qwen3", "qwen3vl")  # architectures for which llama.cpp returns probabilities
PAIR_TEMPLATE = "tokenizer.chat_template.rerank"


def build(plan: Plan, report: Report) -> EmbeddingEngine:
    """Load the plan's target, an embedding model or reranker. Raises EagleLocalError, after freeing what was loaded."""
    started_at, machine, name = time.perf_counter(), probe(), plan.target.name
    info = read_model(read_header(plan.target))
    check_pooling(info)
    task = read_task(info.header)
    check_experts(plan, describe_shape(info))
    n_ctx = min(plan.n_ctx, info.context_length)  # further positions may have no embedding
    library = load_library()
    check_memory(library, machine, list_buffers(info, plan, n_ctx), plan, n_ctx)
    with contextlib.ExitStack() as opened:
        model = LlamaModel(
            library, plan.target, make_placement(plan), on_progress=lambda share: report(LoadProgress(share, name))
        )
        opened.callback(model.close)
        threads = plan.threads or count_usable_threads()
        context = EmbeddingContext(model, make_params(plan, n_ctx, threads, ranks=task is ModelTask.RANK))
        opened.callback(context.close)
        engine_info = EngineInfo(
            target=plan.target_label,
            draft="none",
            draft_reason="a model that writes no text drafts nothing",
            n_ctx=n_ctx,
            num_slots=min(MAX_TEXTS, n_ctx),
            n_vocab=model.vocabulary.n_tokens,
            chat_template=False,
            threads=threads,
            model_bytes=model.size_bytes,
            load_s=time.perf_counter() - started_at,
            library=library.build,
            task=task,
            trained_ctx=info.context_length or 0,
            embedding_size=context.n_embd if task is ModelTask.EMBEDDING else 0,
            architecture=info.architecture,
        )
        pairs = make_pairs(info.header, model.vocabulary) if task is ModelTask.RANK else None
        return EmbeddingEngine(
            context,
            model.vocabulary,
            engine_info,
            pairs=pairs,
            gives_probabilities=info.architecture in SOFTMAX,
            input_executors=start_executors(num_low=1, report=report),
            close=opened.pop_all().close,
        )


def make_params(plan: Plan, n_ctx: int, threads: int, *, ranks: bool) -> EmbeddingParams:
    return EmbeddingParams(
        n_batch=n_ctx,
        num_texts=min(MAX_TEXTS, n_ctx),
        ranks=ranks,
        threads=threads,
        kv_type=plan.kv_type,
        flash_attn=plan.flash_attn,
    )


def make_pairs(header: Header, vocabulary: LlamaVocabulary) -> Pairs:
    template = header.metadata.get(PAIR_TEMPLATE)
    if isinstance(template, str):
        return write_pairs(vocabulary, template)
    return frame_pairs(vocabulary, vocabulary.pair_frame)


def check_pooling(info: ModelInfo) -> None:
    """Raise IncompatibleError for a model that computes neither embeddings nor scores."""
    header = info.header
    task, name = read_task(header), header.path.name
    if info.has_state:
        raise IncompatibleError(f"{name} keeps recurrent state and cannot make embeddings")
    if task is ModelTask.TEXT:
        raise IncompatibleError(
            f"{name} is not an embedding model: its file has no pooling type",
            hint=f"use a file with the key {info.architecture}.pooling_type",
        )
    if task is ModelTask.RANK and not any(tensor in header.tensors for tensor in CLASSIFIERS):
        raise IncompatibleError(
            f"{name} is a reranker without a classifier", hint="use a file that was converted as a reranker"
        )


def list_buffers(info: ModelInfo, plan: Plan, n_ctx: int) -> list[Buffer]:
    """Return the least memory that is needed.

    A decoder computes logits of every row in its compute buffer, although they are not used.
    """
    is_encoder = info.header.metadata.get(f"{info.architecture}.attention.causal") is False
    unread_bytes = 0 if is_encoder else logits_bytes(n_ctx, info.n_vocab)
    sizes = CacheParams(n_ctx=n_ctx, n_batch=n_ctx, kv_type=plan.kv_type)
    return [*minimum_buffers(describe_shape(info), sizes), Buffer(RAM, MemoryKind.BUFFERS, unread_bytes)]


def check_memory(library: LlamaLibrary, machine: Machine, buffers: list[Buffer], plan: Plan, n_ctx: int) -> None:
    free = free_memory(library, ram_bytes=machine.memory.available_bytes, unified=machine.lends_memory)
    check_fits(buffers, [join_devices(free)], AdjustableSizes(n_ctx=n_ctx, gpu_layers=plan.gpu_layers))
