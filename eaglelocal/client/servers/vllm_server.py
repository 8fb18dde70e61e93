"""Read a vLLM server for a monitor: /metrics and /v1/models. Several engines of one server are summed."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.client.json_fields import objects, text, whole
from eaglelocal.client.server_reading import ServerReading
from eaglelocal.client.servers.connection import KeepAliveConnection
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
            listed = objects(self._connection.get("/v1/models").mapping().get("data"))
            self._model = listed[0] if listed else {}
        return parse_vllm(Samples(reply.text), self._model)


def parse_vllm(samples: Samples, model: Mapping[str, object]) -> ServerReading:
    """Return the reading. `model`: the first entry of /v1/models."""
    running = PREFIX + "num_requests_running"
    cached = samples.total(PREFIX + "prefix_cache_hits_total", PREFIX + "gpu_prefix_cache_hits_total")
    totals = samples.read_totals(
        PREFIX,
        process=str(samples.total("process_start_time_seconds") or ""),
        cached=cached,
        generated=samples.total(PREFIX + "generation_tokens_total"),
    )
    return ServerReading(
        kind=KIND,
        state="ready",
        model=text(model, "id") or samples.label(running, "model_name"),
        n_ctx=whole(model, "max_model_len"),
        running=samples.whole(running),
        waiting=samples.whole(PREFIX + "num_requests_waiting"),
        answered=samples.whole(PREFIX + "request_success_total"),
        cache_share=samples.mean(PREFIX + "kv_cache_usage_perc", PREFIX + "gpu_cache_usage_perc"),
        memory_bytes=samples.whole("process_resident_memory_bytes"),
        totals=totals,
    )
