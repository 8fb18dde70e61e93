"""A trial of llama.cpp: loading it in a separate process and listing its devices, without a model.

A build for another processor, or a driver that does not match it, can crash the process that loads it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, cast

from eaglelocal.core.json_text import read_object
from eaglelocal.doctor.installation import LlamaTrial
from eaglelocal.probe.subprocess_calls import NoAnswer, run_module

if TYPE_CHECKING:
    from eaglelocal.backend.llama_library import LlamaLibrary

MODULE = "eaglelocal.doctor.llama_trial"
TIMEOUT_S = 60.0  # a first start on CUDA may compile kernels


def try_library(*, timeout_s: float = TIMEOUT_S) -> LlamaTrial:
    """Load llama.cpp in a child process; return its devices, or what failed. Never raises."""
    try:
        ran = run_module(MODULE, timeout_s=timeout_s)
    except NoAnswer:
        return LlamaTrial(failure=f"it is not loaded after {timeout_s:g} s")
    if ran is None:
        return LlamaTrial(failure=f"{sys.executable} cannot be started")
    if ran.code:
        return LlamaTrial(failure=_death(ran.code, ran.stderr.decode(errors="replace")))
    try:
        told = read_object(ran.stdout.splitlines()[-1])
        devices = tuple(map(str, cast("list[object]", told["devices"])))
        return LlamaTrial(devices=devices, failure=str(told["failure"]), blindness=str(told["blindness"]))
    except (ValueError, IndexError, KeyError, TypeError):
        return LlamaTrial(failure="it says nothing that could be understood")


def _death(code: int, stderr: str) -> str:
    """Describe how the process ended: by a signal, else with the last line of its stderr."""
    if code < 0:
        names = {signal.SIGILL: "an instruction that this processor does not have", signal.SIGSEGV: "a wrong address"}
        try:
            kind = signal.Signals(-code)
        except ValueError:  # a real-time signal has no name
            return f"it crashes (signal {-code})"
        return f"it crashes ({kind.name}: {names[kind]})" if kind in names else f"it crashes ({kind.name})"
    lines = stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"it ends with code {code}"


def main() -> None:
    from eaglelocal.backend.llama_library import load_library
    from eaglelocal.backend.parent_watch import end_with_parent
    from eaglelocal.errors import EagleLocalError

    with contextlib.suppress(EagleLocalError):  # the C library may be what is broken
        end_with_parent()
    devices, failure, blindness = list[str](), "", ""
    try:
        library = load_library()
        devices = devices_of(library)
        blindness = why_blind(library)
    except EagleLocalError as problem:
        failure = problem.message
    sys.stdout.write(json.dumps({"devices": devices, "failure": failure, "blindness": blindness}) + "\n")


def devices_of(library: LlamaLibrary) -> list[str]:
    from eaglelocal.backend.device_memory import free_memory
    from eaglelocal.memory.budget import RAM

    return [room.device for room in free_memory(library, ram_bytes=None, unified=False) if room.device != RAM]


def why_blind(library: LlamaLibrary) -> str:
    """Return why models cannot read images with this build; empty: those with a projector can."""
    from eaglelocal.backend.image_encoder import load_mtmd
    from eaglelocal.errors import LibraryError

    try:
        load_mtmd(library)
    except LibraryError as problem:
        return problem.message
    return ""


if __name__ == "__main__":
    main()
