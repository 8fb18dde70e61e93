"""`eaglelocal probe`: what this machine is, for people and as JSON."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output

if TYPE_CHECKING:
    from eaglelocal.probe.machine import Cpu, Gpu, Machine, Memory

UNKNOWN = "unknown"
INDENT = " " * 9
WIDTH = 79


def probe(as_json: flags.AsJson = False) -> None:
    """Show this machine: GPUs, CPU, memory, llama.cpp.

    \b
    eaglelocal probe
    eaglelocal probe --json | jq .memory
    """
    from eaglelocal.probe.probe import probe as probe_machine
    from eaglelocal.probe.report import to_json

    output = standard_output()
    machine = probe_machine()
    if as_json:
        return output.object(to_json(machine))
    for line in machine_lines(machine):
        output.data(line)
    return None


def machine_lines(machine: Machine) -> list[str]:
    gpus = [line for gpu in machine.gpus for line in _gpu_lines(gpu)]
    if machine.unified is not None:
        gpus.append(f"gpu      {machine.unified.chip or UNKNOWN}, {_size(machine.unified.total_bytes)} unified memory")
    build = machine.llama_cpp
    return [
        *(gpus or ["gpu      none found"]),
        *_cpu_lines(machine.cpu),
        _memory_line(machine.memory),
        f"disk     {_size(machine.cache_free_bytes)} free for models",
        f"engine   llama-cpp-python {build.version or UNKNOWN}, backends: {', '.join(build.backends) or UNKNOWN}",
    ]


def _gpu_lines(gpu: Gpu) -> list[str]:
    return [
        f"gpu {gpu.index:<4} {gpu.name or UNKNOWN}",
        f"{INDENT}{_size(gpu.total_bytes)}, {_size(gpu.free_bytes)} free, capability {gpu.capability or UNKNOWN}, "
        f"driver {gpu.driver or UNKNOWN}",
    ]


def _cpu_lines(cpu: Cpu) -> list[str]:
    cores = f"{cpu.physical_cores or UNKNOWN} cores, {cpu.logical_cores or UNKNOWN} logical"
    quota = f", quota {cpu.quota_cores:g}" if cpu.quota_cores is not None else ""
    extensions = textwrap.wrap(" ".join(cpu.vector_extensions or ()) or UNKNOWN, WIDTH - len(INDENT))
    return [
        f"cpu      {cpu.name or UNKNOWN}",
        f"{INDENT}{cores}{quota}, {cpu.usable_threads} threads to use",
        *(INDENT + line for line in extensions),
    ]


def _memory_line(memory: Memory) -> str:
    limit = ", limited by the cgroup" if memory.limit_bytes is not None else ""
    return f"memory   {_size(memory.total_bytes)}, {_size(memory.available_bytes)} available{limit}"


def _size(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else f"{num_bytes / 2**30:.1f} GiB"
