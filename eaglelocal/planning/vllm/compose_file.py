"""Write a compose file that serves a planned pair with vLLM's own image. Pure."""

from __future__ import annotations

from pathlib import Path

from eaglelocal.planning.vllm.vllm_arguments import VLLM_VERSION, VllmPlan, list_arguments

IMAGE, TAG = "vllm/vllm-openai", f"v{VLLM_VERSION}"
PORT = 8000
HEADS = "/heads"  # of heads of this machine, in the container


def make_compose_file(plan: VllmPlan, head_folder: Path | None = None) -> dict[str, object]:
    """Return the compose file. `head_folder`: of an exported head on the host, mounted where the plan names it."""
    draft = plan.pair.draft
    volumes: list[object] = ["models:/root/.cache/huggingface"]
    if head_folder is not None and draft is not None and draft.pin is not None:
        volumes.append(make_mount(head_folder, draft.pin.repo))
    part = plan.fit.slice
    cards = (
        {"device_ids": ["${MIG_DEVICE:?the UUID of a slice of " + part.name + "}"]}
        if part
        else {"count": plan.fit.num_cards}
    )
    service = {
        "image": f"{IMAGE}:{TAG}",
        "command": [_escape(word) for word in list_arguments(plan)],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": volumes,
        "ipc": "host",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://127.0.0.1:{PORT}/health"],
            "interval": "30s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "30m",
        },
        "deploy": {
            "resources": {"reservations": {"devices": [{"driver": "nvidia", **cards, "capabilities": ["gpu"]}]}}
        },
    }
    return {"services": {"vllm": service}, "volumes": {"models": {}}}


def make_mount(folder: Path, place: str) -> dict[str, object]:
    """Return the mount of a folder of the host in compose's long form: the short one is cut at each colon of a path."""
    return {"type": "bind", "source": _escape(str(folder)), "target": _escape(place), "read_only": True}


def _escape(text: str) -> str:
    """Double each `$`, which compose would take for a variable."""
    return text.replace("$", "$$")
