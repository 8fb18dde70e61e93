"""Poll a running server on a thread of its own: detect its kind, read its state, and reconnect after restarts.

A failure is a reading too (DISCONNECTED, with the reason); the next attempt detects the kind of server anew.
A monitor's commands (cancel, switch) use a connection of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from eaglelocal.client.http_connection import KeepAliveConnection
from eaglelocal.client.http_server import is_ours
from eaglelocal.client.http_stream import objects, text, whole
from eaglelocal.client.server_reading import DISCONNECTED, ServerReading, add_known
from eaglelocal.client.servers.eaglelocal_server import EaglelocalServer, ServerReader
from eaglelocal.client.servers.llama_server import LlamaServer
from eaglelocal.client.servers.vllm_server import Samples, VllmServer
from eaglelocal.core.request import Spec
from eaglelocal.errors import EagleLocalError, EngineError

POLL_INTERVAL_S = 0.5  # between readings
RETRY_INTERVAL_S = 2.0  # between attempts to reach a server that does not answer

OnReading = Callable[[ServerReading], None]


def detect_server(connection: KeepAliveConnection) -> ServerReader:
    """Detect the kind of server and return its reader. Raises EngineError for an unknown one."""
    reply = connection.get("/v1/models")
    if reply.status in (401, 403):
        hint = "set EAGLELOCAL_API_KEY to the key of the server"
        raise EngineError(f"{connection.url} needs a key", hint=hint)
    entry = next(iter(objects(reply.mapping().get("data"))), {})
    if is_ours(entry):
        return EaglelocalServer(connection)
    if entry.get("owned_by") == "llamacpp" or connection.get("/props").mapping().get("total_slots"):
        return LlamaServer(connection)
    metrics = connection.get("/metrics")
    samples = Samples(metrics.text if metrics.is_good else "")
    if "vllm:" in samples:
        return VllmServer(connection)
    if "llamacpp:" in samples or reply.status == 503:  # it is loading
        return LlamaServer(connection)
    loaded = connection.get("/api/ps")
    if loaded.is_good and isinstance(loaded.mapping().get("models"), list):
        return OllamaServer(connection)
    what = f"{connection.url} is neither eaglelocal nor llama-server, vLLM or Ollama"
    raise EngineError(what, hint="its /v1/models, /props, /metrics and /api/ps are those of no known server")


class ServerWatch:
    """Polls a server until it is closed; `on_reading` runs on its thread."""

    def __init__(self, url: str, on_reading: OnReading, *, api_key: str = "", gap_s: float = POLL_INTERVAL_S) -> None:
        """Prepare a watch. Raises UsageError for an invalid address."""
        self._connection = KeepAliveConnection(url, api_key=api_key)
        self.url, self._api_key = self._connection.url, api_key
        self._on_reading, self._gap_s = on_reading, gap_s
        self._reader: ServerReader | None = None
        self._kind = ""
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop polling; a request in flight may be abandoned after 1 s."""
        self._is_closing.set()
        self._thread.join(1.0)

    def read(self) -> ServerReading:
        """Return the server's present state; on failure a DISCONNECTED reading."""
        try:
            if self._reader is None:
                self._reader = detect_server(self._connection)
                self._kind = self._reader.kind
            return self._reader.read()
        except EagleLocalError as error:
            self._reader = None
            return ServerReading(kind=self._kind, state=DISCONNECTED, detail=error.message)

    # ---- commands, from any thread
    def cancel(self, request_id: str) -> None:
        """Cancel a request. Raises EagleLocalError, with the server's reason if it has one."""
        self._post(f"/v1/requests/{quote(request_id, safe='')}/cancel", {})

    def switch(self, spec: Spec) -> None:
        """Set how to draft for requests that do not say it themselves. Raises EagleLocalError."""
        self._post("/v1/speculation", {"spec": spec.num_draft_tokens or str(spec)})

    def _post(self, path: str, body: dict[str, object]) -> None:
        with contextlib.closing(KeepAliveConnection(self.url, api_key=self._api_key)) as connection:
            connection.post(path, body)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            reading = self.read()
            self._on_reading(reading)
            self._is_closing.wait(RETRY_INTERVAL_S if reading.state == DISCONNECTED else self._gap_s)
        self._connection.close()


# ---- Ollama: /api/ps, with its loaded models and their memory. It reports no speed
KIND = "Ollama"


class OllamaServer(ServerReader):
    kind = KIND

    def read(self) -> ServerReading:
        reply = self._connection.get("/api/ps")
        if not reply.is_good:
            raise EngineError(f"{self._connection.url}/api/ps answers {reply.status}")
        return parse_ollama(objects(reply.mapping().get("models")))


def parse_ollama(models: Sequence[Mapping[str, object]]) -> ServerReading:
    """Return the reading. `models`: the entries of /api/ps; none while no model is loaded."""
    names = [text(model, "name") for model in models]
    sizes = add_known(whole(model, "size") for model in models)
    return ServerReading(
        kind=KIND,
        state="ready" if models else "idle",
        model=names[0] if names else "",
        other_models=tuple(names[1:]),
        n_ctx=whole(models[0], "context_length") if models else None,
        memory_bytes=None if sizes is None else int(sizes),
    )
