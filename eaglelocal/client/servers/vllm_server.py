"""Read a vLLM server for a monitor: /metrics and /v1/models. Several engines of one server are summed."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.client.http_stream import mapping
from eaglelocal.client.server_reading import ServerReading, ServerTotals
from eaglelocal.client.servers.connection import KeepAliveConnection
from eaglelocal.client.servers.json_fields import text, whole
from eaglelocal.client.servers.prometheus import Samples
from eaglelocal.errors import EngineError

KIND = "vLLM"
PREFIX = "vllm:"


class VllmServer:
    """A ServerReader for vLLM."""

    kind = KIND

    def __init__(self, connection: KeepAliveConnection) -> None:
        self._connection = connection
        self._model: Mapping[str, object] = {}

    def read(self) -> ServerReading:
        reply = self._connection.get("/metrics")
        if not reply.is_good:
            raise EngineError(f"{self._connection.url}/metrics answers {reply.status}")
        if not self._model:
            listed = self._connection.get("/v1/models").mapping().get("data")
            self._model = mapping(listed[0]) if isinstance(listed, list) and listed else {}
        return parse_vllm(Samples(reply.text), self._model)


def parse_vllm(samples: Samples, model: Mapping[str, object]) -> ServerReading:
    """Return the reading. `model`: the first entry of /v1/models."""
    running, waiting = PREFIX + "num_requests_running", PREFIX + "num_requests_waiting"
    num_running, num_waiting = samples.total(running), samples.total(waiting)
    return ServerReading(
        kind=KIND,
        state="ready",
        model=text(model, "id") or samples.label(running, "model_name"),
        n_ctx=whole(model, "max_model_len"),
        running=None if num_running is None else int(num_running),
        waiting=None if num_waiting is None else int(num_waiting),
        answered=_int(samples.total(PREFIX + "request_success_total")),
        cache_share=samples.mean(PREFIX + "kv_cache_usage_perc", PREFIX + "gpu_cache_usage_perc"),
        memory_bytes=_int(samples.total("process_resident_memory_bytes")),
        totals=_totals(samples),
    )


def _totals(samples: Samples) -> ServerTotals:
    draft = PREFIX + "spec_decode_num_"
    hits = samples.total(PREFIX + "prefix_cache_hits_total", PREFIX + "gpu_prefix_cache_hits_total")
    return ServerTotals(
        process=str(samples.total("process_start_time_seconds") or ""),
        prompt_tokens=samples.total(PREFIX + "prompt_tokens_total"),
        cached_prompt_tokens=hits,
        generated_tokens=samples.total(PREFIX + "generation_tokens_total"),
        drafts=samples.total(draft + "drafts_total", draft + "drafts"),
        draft_tokens=samples.total(draft + "draft_tokens_total", draft + "draft_tokens"),
        accepted_tokens=samples.total(draft + "accepted_tokens_total", draft + "accepted_tokens"),
        per_position=samples.by_position(draft + "accepted_tokens_per_pos_total", draft + "accepted_tokens_per_pos"),
    )


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
