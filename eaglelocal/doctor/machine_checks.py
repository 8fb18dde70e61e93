"""Checks of the machine: whether this llama.cpp can use its GPUs, its memory, its processors."""

from __future__ import annotations

import math

from eaglelocal.doctor.finding import Finding, format_gib, ok, problem, warning
from eaglelocal.doctor.installation import Installation
from eaglelocal.doctor.repair_commands import NAMES, backend_to_build, install_driver, is_macos, reinstall
from eaglelocal.probe.machine import Gpu, Machine

LITTLE_MEMORY_BYTES = 2 << 30
MUCH_SWAP_BYTES = 512 << 20
RUN_BY = ("docker", "podman")  # container engines whose command has their name


def gpu_backend(facts: Installation) -> Finding:
    """Check first that llama.cpp was built for the GPU: otherwise the GPU stays idle without any message."""
    machine = facts.machine
    wanted = wanted_backend(facts)
    if wanted is not None:
        name = _names(unserved(machine)) or (machine.unified and machine.unified.chip) or "a GPU"
        text = f"llama.cpp cannot use {name}: this build has no {NAMES[wanted]}"
        return problem("gpu_backend", text, reinstall(facts, wanted))
    served = visible(machine)
    if served:
        backends = sorted({NAMES[backend] for gpu in served if (backend := machine.backend_of(gpu))})
        return ok("gpu_backend", f"llama.cpp uses {_names(served)} through {' and '.join(backends)}")
    if hidden := [gpu for gpu in machine.gpus if gpu.hidden_by]:
        return ok("gpu_backend", f"llama.cpp could use {_names(hidden)}, which {hidden[0].hidden_by} hides")
    if machine.unified is not None:
        return ok("gpu_backend", f"llama.cpp uses {machine.unified.chip or 'the GPU'} through Metal")
    if facts.trial is not None and facts.trial.devices:  # seen by llama.cpp alone
        return ok("gpu_backend", f"llama.cpp sees {', '.join(facts.trial.devices)}")
    return ok("gpu_backend", "no GPU that llama.cpp could use")


def gpu_driver(facts: Installation) -> Finding | None:
    """Report cards that are present but whose driver does not answer."""
    machine = facts.machine
    if machine.unanswered:
        return problem("gpu_driver", "; ".join(machine.unanswered), "nvidia-smi")  # shows whether it hangs or is slow
    mute = [gpu for gpu in machine.gpus if gpu.is_mute]
    if not mute:
        return None
    name = _names(mute)
    if machine.system.container:
        text = f"{name} is there, but this container ({machine.system.container}) was not given it"
        command = {"docker": "docker run --gpus all ...", "podman": "podman run --device nvidia.com/gpu=all ..."}
        return warning("gpu_driver", text, command.get(machine.system.container, ""))
    if mute[0].driver == "nvidia" or mute[0].name is None:
        return problem("gpu_driver", f"{name} is there, but its driver does not answer", "sudo reboot")
    driver = f"its driver is {mute[0].driver}" if mute[0].driver else "it has no driver"
    text = f"{name} is there, but {driver}; llama.cpp needs NVIDIA's"
    return warning("gpu_driver", text, install_driver(machine.system))


def hidden_gpus(facts: Installation) -> Finding | None:
    """Warn where a variable hides every GPU, most likely a leftover; hiding only some is taken as intended."""
    hidden = [gpu for gpu in facts.machine.gpus if gpu.hidden_by]
    if not hidden or visible(facts.machine):
        return None
    name, _, value = hidden[0].hidden_by.partition("=")
    return warning("hidden_gpus", f"{name}={value!r} hides every GPU from llama.cpp", f"unset {name}")


def gpu_devices(facts: Installation) -> Finding | None:
    """Report a GPU that llama.cpp was built for but does not see.

    As a rule the driver is too old for the build, or only others may open the device file.
    """
    machine, trial = facts.machine, facts.trial
    served = visible(machine)
    if trial is None or trial.failure or not served:
        return None
    if trial.devices:
        return ok("gpu_devices", f"llama.cpp sees {', '.join(trial.devices)}")
    if served[0].vendor != "nvidia" and (closed := closed_device(facts, served[0])):
        return closed
    backend = machine.backend_of(served[0])
    newest = f" (its driver runs CUDA up to {served[0].max_cuda})" if served[0].max_cuda else ""
    text = f"llama.cpp has {NAMES[backend or 'cuda']}, but does not see {_names(served)}{newest}"
    return problem("gpu_devices", text, reinstall(facts, backend))


def closed_device(facts: Installation, gpu: Gpu) -> Finding | None:
    """Report device files of AMD's and Intel's GPUs that only a group may open, or that the container was not given."""
    files, container = facts.device_files, facts.machine.system.container
    if files is None:
        return None
    if not files.paths and container:
        text = f"{gpu.name or 'a GPU'} is there, but this container ({container}) was not given it"
        given = "--device /dev/dri" + (" --device /dev/kfd" if facts.machine.backend_of(gpu) == "hip" else "")
        return problem("gpu_devices", text, f"{container} run {given} ..." if container in RUN_BY else "")
    if not files.closed:
        return None
    path, group = files.closed[0]
    text = f"llama.cpp does not see {gpu.name or 'the GPU'}: only the group {group} may open {path}"
    if container:
        return problem("gpu_devices", text, f"{container} run --group-add {group} ..." if container in RUN_BY else "")
    return problem("gpu_devices", f"{text}; who joins it must log in again", f"sudo usermod -aG {group} $USER")


def memory(facts: Installation) -> Finding:
    """Report how much memory a model may have, and the cgroup's limit where there is one."""
    found = facts.machine.memory
    if found.available_bytes is None:
        return ok("memory", "how much memory there is cannot be told")
    free = f"{format_gib(found.available_bytes)} of memory can be had"
    little = found.available_bytes < LITTLE_MEMORY_BYTES
    if found.limit_bytes is not None and found.limit_bytes < (found.installed_bytes or math.inf):
        text = f"{free}: the cgroup allows {format_gib(found.limit_bytes)} of {format_gib(found.installed_bytes)}"
        return warning("memory", text, _raise_memory(facts.machine))
    return warning("memory", f"only {free}", _hungriest(facts.machine)) if little else ok("memory", free)


def threads(facts: Installation) -> Finding:
    cpu = facts.machine.cpu
    used = f"{cpu.usable_threads} {'thread' if cpu.usable_threads == 1 else 'threads'}"
    granted = f"{cpu.quota_cores:g} of {cpu.physical_cores or cpu.logical_cores}" if cpu.quota_cores else ""
    if granted and (cpu.quota_cores or 0.0) < (cpu.physical_cores or cpu.logical_cores or 1):
        text = f"the cgroup grants {granted} cores: llama.cpp gets {used}"
        return warning("threads", text, _raise_cpus(facts.machine))
    if cpu.allowed_cores and cpu.logical_cores and cpu.allowed_cores < cpu.logical_cores:
        text = f"this shell may use {cpu.allowed_cores} of {cpu.logical_cores} processors: llama.cpp gets {used}"
        return warning("threads", text, f"taskset -c 0-{cpu.logical_cores - 1} eaglelocal chat")
    return ok("threads", f"llama.cpp gets {used}")


def swap(facts: Installation) -> Finding | None:
    """Warn of much used swap: a swapped-out model is read from disk, layer by layer, for every token."""
    found = facts.machine.memory
    if found.swap_total_bytes is None or found.swap_free_bytes is None or is_macos(facts.machine.system):
        return None  # macOS swaps out idle memory even where there is room
    used = found.swap_total_bytes - found.swap_free_bytes
    if used < MUCH_SWAP_BYTES:
        return None
    text = f"{format_gib(used)} are swapped out: what is swapped back in slows decoding down"
    fits = used < (found.available_bytes or 0) // 2
    return warning("swap", text, "sudo swapoff -a && sudo swapon -a" if fits else _hungriest(facts.machine))


# ---- which GPUs
def visible(machine: Machine) -> list[Gpu]:
    """Return the GPUs that llama.cpp should see here."""
    return [gpu for gpu in machine.gpus if not gpu.is_mute and not gpu.hidden_by and machine.backend_of(gpu)]


def unserved(machine: Machine) -> list[Gpu]:
    """Return the GPUs that only another build could use."""
    return [gpu for gpu in machine.gpus if gpu.is_worth_building_for and not machine.backend_of(gpu)]


def wanted_backend(facts: Installation) -> str | None:
    """Return the backend that llama.cpp should be built with and is not; None: nothing is missing.

    One served card is enough: another, unserved one may only drive the screen.
    """
    machine = facts.machine
    if machine.unified is not None:
        return None if "metal" in machine.llama_cpp.backends else "metal"
    if any(gpu.is_worth_building_for and machine.backend_of(gpu) for gpu in machine.gpus):
        return None
    cards = unserved(machine)
    return backend_to_build(max(cards, key=lambda gpu: gpu.total_bytes or 0), facts.tools) if cards else None


def present_backend(facts: Installation) -> str | None:
    """Return the backend for a new build: the missing one, else the one that now serves the first useful GPU."""
    machine = facts.machine
    if machine.unified is not None:
        return "metal"
    wanted = wanted_backend(facts)
    if wanted is not None:
        return wanted
    cards = [gpu for gpu in machine.gpus if gpu.is_worth_building_for]
    return next((backend for gpu in cards if (backend := machine.backend_of(gpu))), None)


def _names(gpus: list[Gpu]) -> str:
    """Return the names, equal ones counted: 2 x NVIDIA GeForce RTX 4090."""
    names = [gpu.name or "a GPU" for gpu in gpus]
    return ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def _raise_memory(machine: Machine) -> str:
    """Return the command that doubles the container's memory limit, up to all there is; empty if none is known."""
    limit, installed = machine.memory.limit_bytes or 0, machine.memory.installed_bytes or 0
    gib = max(min(2 * limit, installed) >> 30, 1)
    commands = {"docker": f"docker update --memory {gib}g --memory-swap {gib}g CONTAINER"}
    return commands.get(machine.system.container or "", "")


def _hungriest(machine: Machine) -> str:
    return "ps aux -m | head" if is_macos(machine.system) else "ps aux --sort=-rss | head"


def _raise_cpus(machine: Machine) -> str:
    cores = machine.cpu.physical_cores or machine.cpu.logical_cores or 1
    commands = {"docker": f"docker update --cpus {cores} CONTAINER"}
    return commands.get(machine.system.container or "", "")
