"""A machine as the JSON object of `eaglelocal probe --json`."""

from __future__ import annotations

from dataclasses import asdict

from eaglelocal.probe.machine import Machine


def to_json(machine: Machine) -> dict[str, object]:
    """Return the keys gpus, unified, cpu, memory, disk, llama_cpp, system, unanswered; what is unknown is null."""
    return {
        "gpus": [
            {**asdict(gpu), "backend": machine.backend_of(gpu), "room_bytes": gpu.room_bytes} for gpu in machine.gpus
        ],
        "unified": asdict(machine.unified) if machine.unified else None,
        "cpu": asdict(machine.cpu),
        "memory": asdict(machine.memory),
        "disk": {"cache_free_bytes": machine.cache_free_bytes, "hub_free_bytes": machine.hub_free_bytes},
        "llama_cpp": {
            "version": machine.llama_cpp.version,
            "backends": list(machine.llama_cpp.backends),
            "folder": str(machine.llama_cpp.folder) if machine.llama_cpp.folder else None,
            "ggml_version": machine.llama_cpp.ggml_version,
        },
        "system": asdict(machine.system),
        "unanswered": list(machine.unanswered),
    }
