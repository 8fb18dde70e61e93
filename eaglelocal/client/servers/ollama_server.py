"""Read an Ollama server for a monitor: /api/ps, with its loaded models and their memory. It reports no speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eaglelocal.client.json_fields import objects, text, whole
from eaglelocal.client.server_reading import ServerReading, add_known
from eaglelocal.client.servers.connection import KeepAliveConnection
from eaglelocal.errors import EngineError

KIND = "Ollama"


class OllamaServer:
    """A ServerReader for Ollama."""

    kind = KIND

    def __init__(self, connection: KeepAliveConnection) -> None:
        self._connection = connection

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


def is_ollama(connection: KeepAliveConnection) -> bool:
    """Return True if /api/ps lists models as Ollama does."""
    reply = connection.get("/api/ps")
    return reply.is_good and isinstance(reply.mapping().get("models"), list)
