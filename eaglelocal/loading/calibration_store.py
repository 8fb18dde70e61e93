"""Stores what engines have learned: costs per machine, model shape and settings, acceptance per target and draft, and
which chat templates can be used.

The files are small and hold figures, no text. Knows names and files, not the meaning of the learned state. A file that
is unreadable, foreign or of another key counts as missing: a calibration can always be repeated. Files are written to
a temporary name and moved, so that engines ending at the same time leave complete files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from eaglelocal import __version__, locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import fingerprint, list_own, read_own
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.probe.machine import Machine

FORMAT = 4  # 3: measured before the package had CPU kernels of its own
MAX_FILES = 64
MAX_FILE_BYTES = 1 << 20
USUAL_PLACEMENT = "None, None, layer"  # of `placement_key`, with default settings
SIMILAR_KV_TYPES = ("f16", "q8_0")  # caches that cost so nearly the same that one curve stands for both


Key = Mapping[str, object]  # of texts and numbers: everything that a learned state depends on


def make_cost_key(
    plan: Plan,
    machine: Machine,
    target: Header,
    draft: Header | None,
    *,
    threads: int,
    unified: bool,
    library: str,
    is_read: bool = False,
) -> Key:
    """Return the key of the costs of a plan on this machine.

    unified  there is one KV cache for all slots
    is_read  the target's weights are read into memory or huge pages, instead of mapped
    """
    return {
        "machine": machine_name(machine),
        "model": shape_hash(target),
        "weights": target.main_type,
        "draft": shape_hash(draft) if draft else plan.draft_kind,
        "threads": threads,
        "num_slots": plan.num_slots,
        "kv_type": plan.kv_type,
        "flash_attn": plan.flash_attn,
        "placement": placement_key(plan),
        "is_read": is_read,
        "unified": unified,
        "library": describe_build(library, machine),
    }


def placement_key(plan: Plan) -> str:
    """Return GPU layers, device, split and shares; others only if there are any."""
    parts = [plan.gpu_layers, plan.device, plan.split, *plan.shares, *plan.rpc]
    of_draft = "" if plan.draft_gpu_layers is None else f"; {plan.draft_gpu_layers}"
    experts = f"; experts of {plan.n_cpu_moe} layers apart" if plan.n_cpu_moe else ""
    others = [f"; {each}" for each in plan.overrides]
    others += [f"; adapter {fingerprint(each.path)}" for each in plan.adapters]
    return ", ".join(map(str, parts)) + of_draft + experts + "".join(others)


def make_acceptance_key(plan: Plan) -> Key:
    """Return the key of the acceptance of a plan's draft: the weights of both models, not the machine."""
    scales = (f" {fingerprint(each.path)}:{each.scale:g}" for each in plan.adapters if each.scale)
    draft = fingerprint(plan.draft) if plan.draft else plan.draft_kind
    return {"target": fingerprint_model(plan.target) + "".join(scales), "draft": draft}


def make_template_key(template: str) -> Key:
    return {"template": hashlib.sha256(template.encode(errors="replace")).hexdigest(), "release": __version__}


def make_file_name(key: Key) -> str:
    text = json.dumps(key, sort_keys=True)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def machine_name(machine: Machine) -> str:
    """Return the visible GPUs' names, then chip and processor, as far as they are known."""
    gpus = [gpu.name or "GPU" for gpu in machine.gpus if not gpu.hidden_by]
    chips = [machine.unified.chip] if machine.unified and machine.unified.chip else []
    return ", ".join([*gpus, *chips, machine.cpu.name or "unknown processor"])


def describe_build(library: str, machine: Machine) -> str:
    """Return the software that computes, such as `llama-cpp-python 0.3.36 (cpu, cuda), driver 550.120`."""
    drivers = sorted(
        {gpu.driver for gpu in machine.gpus if gpu.driver and not gpu.hidden_by and machine.backend_of(gpu)}
    )
    backends = ", ".join(machine.llama_cpp.backends) or "backends unknown"
    return f"{library} ({backends})" + "".join(f", driver {driver}" for driver in drivers)


def shape_hash(header: Header) -> str:
    """Return a hash of everything in a header that decides speed: models of equal shape share a cost curve."""
    architecture = header.metadata.get("general.architecture")
    tensors = sorted((tensor.name, *tensor.shape, tensor.type.name) for tensor in header.tensors.values())
    return hashlib.sha256(repr((architecture, tensors)).encode()).hexdigest()[:16]


def load(key: Key) -> object | None:
    """Return the state saved under exactly this key; None if there is none, or it is unreadable."""
    content = _read_content(folder() / make_file_name(key))
    state: object = content.get("state") if content.get("key") == key else None
    return state


def find_newest_costs(machine: Machine, target: Header, library: str, kv_type: str | None) -> object | None:
    """Return the costs learned last for this model, machine, build and cache, with one slot and default placement.

    None if there are none. Another placement has another curve, so its costs are not returned.

    kv_type  None: as planned, which is usually one of SIMILAR_KV_TYPES
    """
    kv_types = SIMILAR_KV_TYPES if kv_type is None or kv_type in SIMILAR_KV_TYPES else (kv_type,)
    required = {
        "machine": machine_name(machine),
        "model": shape_hash(target),
        "library": describe_build(library, machine),
        "threads": machine.cpu.usable_threads,
        "num_slots": 1,
        "placement": USUAL_PLACEMENT,
    }
    keys = ((path, _read_key(path)) for path in _list_newest_first())
    found = (path for path, key in keys if required.items() <= key.items() and key.get("kv_type") in kv_types)
    newest = next(found, None)
    state: object = None if newest is None else _read_content(newest).get("state")
    return state


def _list_newest_first() -> list[Path]:
    def read_mtime(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # deleted by another engine
            return 0.0

    return sorted(list_own(folder(), "*.json"), key=read_mtime, reverse=True)


def _read_content(path: Path) -> dict[str, object]:
    try:
        content = read_json(read_own(path, MAX_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("format") == FORMAT else {}


def _read_key(path: Path) -> dict[str, object]:
    key = _read_content(path).get("key")
    return key if isinstance(key, dict) else {}


def list_stale_files(machine: Machine, library: str) -> list[tuple[Path, str]]:
    """Return the cost files of this machine that another build measured, with that build. They are never read again."""
    current, here = describe_build(library, machine), machine_name(machine)
    keys = ((path, _read_key(path)) for path in list_own(folder(), "*.json"))
    builds = [(path, key.get("library")) for path, key in keys if key.get("machine") == here]  # none: of acceptance
    return [(path, build) for path, build in builds if isinstance(build, str) and build != current]


def save(key: Key, state: object) -> bool:
    """Store a state, and delete the oldest files beyond MAX_FILES. Returns False if writing failed."""
    path = folder() / make_file_name(key)
    content = {"format": FORMAT, "key": key, "state": state}
    try:
        write_atomically(path, json.dumps(content, indent=1))
        for old in _list_newest_first()[MAX_FILES:]:
            old.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def folder() -> Path:
    return locations.calibrations_dir()
