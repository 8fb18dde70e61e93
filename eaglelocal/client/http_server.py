"""Parse what a server reports of itself: its models, and for a server of ours its snapshot.

Pure and tolerant: a value that is missing or malformed counts as unknown. Other servers list the names of
their models; ours also has /v1/snapshot, with `model` (fields of EngineInfo), `engine` (fields of
EngineSnapshot) and `restarts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglelocal.client.http_stream import amount, count, mapping, number, objects, read_speculation, text
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.draft import NOT_REPORTED
from eaglelocal.core.events import EngineInfo, EngineSnapshot
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.sampling import RECOMMENDED, is_valid_value
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.errors import EngineError, RequestError

OURS = "eaglelocal"  # `owned_by` of our models
# fields of EngineSnapshot in `engine`, under their own names
SNAPSHOT_COUNTS = (
    *("steps", "prompt_tokens", "generated_tokens", "peak_rss_bytes"),
    *("cached_tokens", "cache_cells", "reused_tokens", "swapped_bytes", "stored_bytes"),
)
SNAPSHOT_SECONDS = ("host_s", "native_s", "draft_s", "verify_s", "plain_s", "answer_s")


def choose_model(reply: Mapping[str, object], requested: str, url: str) -> Mapping[str, object]:
    """Return an entry of /v1/models: the requested or the first text model. Raises EngineError and RequestError."""
    named = {name: entry for entry in objects(reply.get("data")) if isinstance(name := entry.get("id"), str)}
    if not named:
        raise EngineError(f"{url} lists no model", hint="give the address of an OpenAI-compatible server")
    if requested and requested not in named:
        raise RequestError(f"{url} has no model {requested!r}", hint="it has: " + ", ".join(list(named)[:8]))
    fields = {name: {**_ollama_fields(reply, name), **entry} for name, entry in named.items()}
    text_models = (name for name, entry in fields.items() if _task({}, entry) is ModelTask.TEXT)
    return fields[requested or next(text_models, next(iter(fields)))]


def _ollama_fields(reply: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return what llama-server reports of its model in a second list, `models`, in Ollama's format."""
    entries = (entry for entry in objects(reply.get("models")) if entry.get("name") == name)
    return next(({"loaded": True, "capabilities": entry.get("capabilities")} for entry in entries), {})


def is_ours(entry: Mapping[str, object]) -> bool:
    return entry.get("owned_by") == OURS


def read_info(entry: Mapping[str, object], snapshot: Mapping[str, object], url: str) -> EngineInfo:
    """Return the EngineInfo of a model, 0 for unknown numbers. The snapshot lists the loaded models, perhaps others."""
    meta, loaded = mapping(entry.get("meta")), [mapping(snapshot.get("model")), *objects(snapshot.get("loaded"))]
    info = next((one for one in loaded if one.get("name") == entry.get("id")), {})
    sampling = mapping(info.get("sampling"))
    n_ctx = count(info, "n_ctx") or count(meta, "n_ctx") or count(entry, "max_model_len")
    return EngineInfo(
        target=text(info, "target") or str(entry.get("id")),
        draft=text(info, "draft") or "none",
        draft_reason=text(info, "draft_reason") or ("" if info else NOT_REPORTED),
        n_ctx=n_ctx,
        num_slots=count(info, "num_slots"),
        n_vocab=count(info, "n_vocab"),
        chat_template=True,
        threads=count(info, "threads"),
        model_bytes=count(info, "model_bytes"),
        load_s=amount(info, "load_s"),
        library=url,
        task=_task(info, entry),
        embedding_size=count(info, "embedding_size"),
        max_draft=count(info, "max_draft"),
        sees_images=may_see_images(entry),
        takes_tools=info.get("takes_tools") is not False,
        adapters=read_adapters(info),
        sampling={
            name: value
            for name in RECOMMENDED
            if (value := number(sampling, name)) is not None and is_valid_value(name, value)
        },
    )


def read_adapters(info: Mapping[str, object]) -> tuple[AdapterFile, ...]:
    """Return the LoRA adapters of a model of a server of ours, with their present scales; a path is only a name."""
    return tuple(AdapterFile(Path(text(one, "name")), amount(one, "scale")) for one in objects(info.get("adapters")))


def _task(info: Mapping[str, object], entry: Mapping[str, object]) -> ModelTask:
    """Return the task: text, unless our server's `task` or llama-server's `capabilities` say otherwise."""
    capabilities = entry.get("capabilities")
    only_capability = capabilities[0] if isinstance(capabilities, list) and len(capabilities) == 1 else None
    return next(
        (task for task in (ModelTask.EMBEDDING, ModelTask.RANK) if task in (info.get("task"), only_capability)),
        ModelTask.TEXT,
    )


def may_see_images(entry: Mapping[str, object]) -> bool:
    """Return False if a loaded model's `capabilities` (llama-server's) lack "multimodal"; True when unknown."""
    fields = entry.get("capabilities")
    return not (entry.get("loaded") is True and isinstance(fields, list) and fields and "multimodal" not in fields)


def read_snapshot(snapshot: Mapping[str, object], *, running: int, num_generated: int) -> EngineSnapshot:
    """Return the server's EngineSnapshot; without one, counts of this client's own requests."""
    engine = mapping(snapshot.get("engine"))
    if not engine:
        stats = SpeculationStats(reason=NOT_REPORTED)
        return EngineSnapshot(running, generated_tokens=num_generated, speculation=stats)
    counts: dict[str, Any] = {name: count(engine, name) for name in ("running", "waiting", *SNAPSHOT_COUNTS)}
    seconds = {name: amount(engine, name) for name in SNAPSHOT_SECONDS}
    return EngineSnapshot(
        engine_pid=count(engine, "pid"),
        speculation=read_speculation(mapping(engine.get("speculation"))),
        spec=text(engine, "spec"),
        **counts | seconds,
    )
