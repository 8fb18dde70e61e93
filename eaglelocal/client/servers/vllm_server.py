"""Read a vLLM server for a monitor: /metrics and /v1/models. Several engines of one server are summed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from eaglelocal.client.http_connection import KeepAliveConnection
from eaglelocal.client.http_stream import objects, text, to_int, whole
from eaglelocal.client.server_reading import ServerReading, ServerTotals
from eaglelocal.client.servers.eaglelocal_server import ServerReader
from eaglelocal.errors import EngineError

KIND = "vLLM"
PREFIX = "vllm:"


class VllmServer(ServerReader):
    kind = KIND

    def __init__(self, connection: KeepAliveConnection) -> None:
        super().__init__(connection)
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


# ---- Prometheus' text format
MAX_POSITION_DIGITS = 3  # bounds the index that a foreign server's label can request


class Samples:
    """The samples of a /metrics page. A metric that is not on it is None, never zero."""

    def __init__(self, text: str) -> None:
        """Parse a page. A malformed line ends the parsing; what was read before it stays."""
        self._values: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if math.isfinite(sample.value):
                        self._values[sample.name].append((sample.labels, sample.value))
        except ValueError:
            return

    def __contains__(self, prefix: object) -> bool:
        """Return whether any metric name begins with `prefix`."""
        return isinstance(prefix, str) and any(name.startswith(prefix) for name in self._values)

    def total(self, *names: str) -> float | None:
        """Return the sum over all labels of the first metric of these names that exists."""
        for name in names:
            if name in self._values:
                return sum(value for _, value in self._values[name])
        return None

    def whole(self, *names: str) -> int | None:
        return to_int(self.total(*names))

    def mean(self, *names: str) -> float | None:
        """Return the mean over all labels, for shares: a server may have a gauge for each of its engines."""
        for name in names:
            if name in self._values:
                values = [value for _, value in self._values[name]]
                return sum(values) / len(values)
        return None

    def read_totals(self, prefix: str, *, process: str, cached: float | None, generated: float | None) -> ServerTotals:
        """Return the totals of a server; llama-server and vLLM name the totals of drafts alike."""
        draft = f"{prefix}spec_decode_num_"
        per_position = f"{draft}accepted_tokens_per_pos"
        return ServerTotals(
            process=process,
            prompt_tokens=self.total(f"{prefix}prompt_tokens_total"),
            cached_prompt_tokens=cached,
            generated_tokens=generated,
            drafts=self.total(f"{draft}drafts_total", f"{draft}drafts"),
            draft_tokens=self.total(f"{draft}draft_tokens_total", f"{draft}draft_tokens"),
            accepted_tokens=self.total(f"{draft}accepted_tokens_total", f"{draft}accepted_tokens"),
            per_position=self.read_positions(f"{per_position}_total", per_position),
        )

    def read_positions(self, *names: str) -> tuple[float, ...] | None:
        """Return the sums by the label `position`, from 0."""
        for name in names:
            found: dict[int, float] = defaultdict(float)
            for labels, value in self._values.get(name, ()):
                position = labels.get("position", "")
                if position.isdecimal() and len(position) <= MAX_POSITION_DIGITS:
                    found[int(position)] += value
            if found:
                return tuple(found[depth] for depth in range(min(max(found) + 1, 64)))
        return None

    def label(self, name: str, label: str) -> str:
        """Return the first value of a label; "" if there is none."""
        return next((labels[label] for labels, _ in self._values.get(name, ()) if label in labels), "")
