"""`eaglelocal probe`: show this machine's hardware and llama.cpp, for people and as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output, wrap_text
from eaglelocal.core.amounts import UNKNOWN, count_noun, format_disk, format_memory

if TYPE_CHECKING:
    from eaglelocal.probe.machine import Bandwidth, Cpu, Gpu, LlamaCpp, Machine, MainMemory, System, Unified

BACKEND_NAMES = {"cuda": "CUDA", "hip": "HIP (ROCm)", "vulkan": "Vulkan", "sycl": "SYCL", "metal": "Metal"}
HUGE_PAGES = {"always": "huge pages for all", "madvise": "huge pages on request", "never": "no huge pages"}
MAX_PROCESSES = 3


def probe(
    as_json: flags.AsJson = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the memory bandwidth again.")] = False,
) -> None:
    """Show this machine: GPUs, CPU, memory, llama.cpp.

    \b
    eaglelocal probe
    eaglelocal probe --json | jq .memory
    """
    from eaglelocal.probe.bandwidth import add_bandwidth
    from eaglelocal.probe.machine import to_json
    from eaglelocal.probe.probe import probe as probe_machine

    output = standard_output()
    machine = add_bandwidth(probe_machine(), remeasure=measure)
    if as_json:
        return output.object(to_json(machine))
    output.lines(machine_lines(machine, now=time.time()))
    return None


def machine_lines(machine: Machine, *, now: float) -> list[str]:
    """Return the description of a machine in lines of at most WIDTH columns. now: seconds since 1970."""
    gpus = [line for gpu in machine.gpus for line in _gpu_lines(gpu, machine.backend_of(gpu))]
    if machine.unified is not None:
        gpus += _unified_lines(machine.unified, machine.llama_cpp)
    return [
        *(gpus or _rows("gpu", "none found")),
        *_cpu_lines(machine.cpu, now),
        *_memory_lines(machine.memory),
        *_disk_lines(machine),
        *_engine_lines(machine.llama_cpp),
        *_system_lines(machine.system),
        *(line for complaint in machine.unanswered for line in _rows("note", complaint)),
    ]


# ---- GPUs
def _gpu_lines(gpu: Gpu, backend: str | None) -> list[str]:
    partitioned = "partitioned: a process gets one of these" if gpu.mig else ""
    texts = [_gpu_memory(gpu), _gpu_facts(gpu), _gpu_processes(gpu), partitioned]
    for part in gpu.slices:
        sizes = f"{format_memory(part.total_bytes)}, {format_memory(part.free_bytes)} free"
        texts.append(f"MIG {part.index}: {part.name or UNKNOWN}, {sizes}")
    return _rows(f"gpu {gpu.index}", gpu.name or UNKNOWN, *texts, _served_by(gpu, backend))


def _gpu_memory(gpu: Gpu) -> str:
    if gpu.shares_memory and gpu.total_bytes is None:
        return "works in the machine's memory"
    if gpu.total_bytes is None:
        return f"memory {UNKNOWN}"
    used = "" if gpu.used_bytes is None else f", {format_memory(gpu.used_bytes)} used by others"
    bandwidth = "" if gpu.bandwidth_bytes_s is None else f", {gpu.bandwidth_bytes_s / 1e9:.0f} GB/s"
    shared = " of the machine's" if gpu.shares_memory else ""
    return f"{format_memory(gpu.total_bytes)}{shared}, {format_memory(gpu.free_bytes)} free{used}{bandwidth}"


def _gpu_facts(gpu: Gpu) -> str:
    capability = f"capability {gpu.capability or UNKNOWN}, " if gpu.vendor == "nvidia" else ""
    cuda = f" (up to CUDA {gpu.max_cuda})" if gpu.max_cuda else ""
    watts = "" if gpu.power_limit_w is None else f", limit {gpu.power_limit_w:.0f} W"
    return f"{capability}driver {gpu.driver or UNKNOWN}{cuda}{_link_text(gpu)}{watts}"


def _link_text(gpu: Gpu) -> str:
    """Return the fastest PCIe link that card and slot reach together; an idle link reports less."""
    if gpu.pcie is None:
        return ""
    generation = gpu.pcie.max_generation or gpu.pcie.generation
    narrow = gpu.pcie.width is not None and gpu.pcie.max_width is not None and gpu.pcie.width < gpu.pcie.max_width
    lanes = f"x{gpu.pcie.width} of {gpu.pcie.max_width}" if narrow else f"x{gpu.pcie.width or UNKNOWN}"
    return f", PCIe {generation or UNKNOWN} {lanes}"


def _gpu_processes(gpu: Gpu) -> str:
    """Return the processes that use the GPU's memory, the largest first."""
    known = [process for process in gpu.processes or () if process.used_bytes is not None]
    shown = [f"{each.name or f'pid {each.pid}'} {format_memory(each.used_bytes)}" for each in known[:MAX_PROCESSES]]
    others = len(known) - len(shown)
    if not shown:
        return ""
    return "used by " + ", ".join(shown) + (f" and {others} more" if others else "")


def _served_by(gpu: Gpu, backend: str | None) -> str:
    if gpu.hidden_by:
        return f"not used: {gpu.hidden_by} hides it"
    if backend and not gpu.is_unresponsive:
        return f"llama.cpp uses it through {BACKEND_NAMES[backend]}"
    if gpu.is_unresponsive:
        return "not used: it does not answer; see eaglelocal doctor"
    names = " or ".join(BACKEND_NAMES[name] for name in gpu.backends if gpu.vendor != "nvidia" or name == "cuda")
    # doctor does not advise a build that would gain little
    advice = "; see eaglelocal doctor" if gpu.is_worth_building_for else ""
    return f"not used: this llama.cpp is built without {names}{advice}"


def _unified_lines(unified: Unified, build: LlamaCpp) -> list[str]:
    cores = f", {unified.gpu_cores} GPU cores" if unified.gpu_cores else ""
    metal = f", {unified.metal}" if unified.metal else ""
    limit = ", a limit that was set here" if unified.gpu_limit_bytes else ""
    served = (
        "llama.cpp uses it through Metal"
        if "metal" in build.backends
        else "not used: this llama.cpp is built without Metal; see eaglelocal doctor"
    )
    for_gpu = f"{format_memory(unified.working_set_bytes)} of it for the GPU{limit}"
    memory = f"{format_memory(unified.total_bytes)} unified memory, {for_gpu}"
    return _rows("gpu", f"{unified.chip or UNKNOWN}{cores}{metal}", memory, served)


# ---- the rest
def _cpu_lines(cpu: Cpu, now: float) -> list[str]:
    cores = f"{cpu.physical_cores or UNKNOWN} cores, {cpu.logical_cores or UNKNOWN} logical"
    threads = count_noun(cpu.usable_threads, "thread")
    clock = f" at {cpu.clock_mhz / 1000:.1f} GHz" if cpu.clock_mhz else ""
    quota = f", quota {cpu.quota_cores:g}" if cpu.quota_cores is not None else ""
    return _rows(
        "cpu",
        cpu.name or UNKNOWN,
        f"{cores}{clock}{quota}, {threads} to use",
        " ".join(cpu.vector_extensions or ()) or f"vector extensions {UNKNOWN}",
        _bandwidth_text(cpu.bandwidth, now),
    )


def _bandwidth_text(measured: Bandwidth | None, now: float) -> str:
    if measured is None:
        return f"memory bandwidth {UNKNOWN}"
    spread = f"{measured.low_bytes_s / 1e9:.1f} to {measured.high_bytes_s / 1e9:.1f}"
    busy = f", while others used {measured.others_share:.0%} of the processors" if measured.is_disturbed else ""
    return (
        f"memory read at {measured.bytes_s / 1e9:.1f} GB/s ({spread}) by "
        f"{count_noun(measured.threads, 'thread')}, measured {_ago(now - measured.measured_at)}{busy}"
    )


def _memory_lines(memory: MainMemory) -> list[str]:
    limit = (
        f", limited by the cgroup (of {format_memory(memory.installed_bytes)})"
        if memory.limit_bytes is not None
        else ""
    )
    pages = f", {HUGE_PAGES[memory.huge_pages]}" if memory.huge_pages in HUGE_PAGES else ""
    text = f"{format_memory(memory.total_bytes)}, {format_memory(memory.available_bytes)} available{limit}{pages}"
    swap, free = memory.swap_total_bytes, memory.swap_free_bytes
    used = None if swap is None or free is None else swap - free
    return _rows("memory", text, f"swap {format_memory(swap)}, {format_memory(used)} in use" if swap else "")


def _disk_lines(machine: Machine) -> list[str]:
    hub, cache = machine.hub_free_bytes, machine.cache_free_bytes
    same = hub is None or hub == cache
    both = f"{format_disk(hub)} free for downloads, {format_disk(cache)} for generated models"
    return _rows("disk", f"{format_disk(cache)} free for models" if same else both)


def _engine_lines(build: LlamaCpp) -> list[str]:
    ggml = f" (ggml {build.ggml_version})" if build.ggml_version else ""
    return _rows(
        "engine", f"llama-cpp-python {build.version or UNKNOWN}{ggml}, backends: {', '.join(build.backends) or UNKNOWN}"
    )


def _system_lines(system: System) -> list[str]:
    wsl = f", under WSL {system.wsl}" if system.wsl else ""
    container = f", in a container ({system.container})" if system.container else ""
    return _rows("system", f"{system.name or UNKNOWN}{wsl}{container}")


# ---- words
def _rows(label: str, *texts: str) -> list[str]:
    """Return texts as lines, the label before the first; empty texts are left out."""
    labels = [f"{label:<9}", *[" " * 9] * (len(texts) - 1)]
    return [line for begin, text in zip(labels, texts, strict=True) for line in wrap_text(begin, text)]


def _ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"
    for name, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count_noun(int(seconds // length), name)} ago"
    return "just now"
