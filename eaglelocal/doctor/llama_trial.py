"""A trial of llama.cpp: load it in a separate process and list its devices, without a model.

A build for another processor, or a driver that does not match, can crash the process that loads it.
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
SIGNALS = {signal.SIGILL: "an instruction this processor does not have", signal.SIGSEGV: "an invalid memory access"}
TIMEOUT_S = 60.0  # a first start on CUDA may compile kernels


def try_library(*, timeout_s: float = TIMEOUT_S) -> LlamaTrial:
    """Load llama.cpp in a child process; return its devices, or what failed. Never raises."""
    try:
        ran = run_module(MODULE, timeout_s=timeout_s)
    except NoAnswer:
        return LlamaTrial(failure=f"it did not load within {timeout_s:g} s")
    if ran is None:
        return LlamaTrial(failure=f"{sys.executable} cannot be started")
    if ran.code:
        return LlamaTrial(failure=_describe_crash(ran.code, ran.stderr.decode(errors="replace")))
    try:
        answer = read_object(ran.stdout.splitlines()[-1])
        devices = tuple(map(str, cast("list[object]", answer["devices"])))
        return LlamaTrial(devices=devices, failure=str(answer["failure"]), image_problem=str(answer["image_problem"]))
    except (ValueError, IndexError, KeyError, TypeError):
        return LlamaTrial(failure="its answer cannot be read")


def _describe_crash(code: int, stderr: str) -> str:
    """Describe how the process ended: by a signal, else with the last line of its stderr."""
    if code < 0:
        try:
            kind = signal.Signals(-code)
        except ValueError:  # a real-time signal has no name
            return f"it crashes (signal {-code})"
        return f"it crashes ({kind.name}: {SIGNALS[kind]})" if kind in SIGNALS else f"it crashes ({kind.name})"
    lines = stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"it ends with code {code}"


def main() -> None:
    from eaglelocal.backend.llama_library import load_library
    from eaglelocal.backend.parent_watch import end_with_parent
    from eaglelocal.errors import EagleLocalError

    with contextlib.suppress(EagleLocalError):  # the C library may be what is broken
        end_with_parent()
    devices, failure, image_problem = list[str](), "", ""
    try:
        library = load_library()
        devices = list_devices(library)
        image_problem = find_image_problem(library)
    except EagleLocalError as error:
        failure = error.message
    sys.stdout.write(json.dumps({"devices": devices, "failure": failure, "image_problem": image_problem}) + "\n")


def list_devices(library: LlamaLibrary) -> list[str]:
    from eaglelocal.backend.device_memory import free_memory
    from eaglelocal.memory.budget import RAM

    return [pool.device for pool in free_memory(library, ram_bytes=None, unified=False) if pool.device != RAM]


def find_image_problem(library: LlamaLibrary) -> str:
    """Return why models cannot read images with this build; empty if those with a projector can."""
    from eaglelocal.backend.image_encoder import load_mtmd
    from eaglelocal.errors import LibraryError

    try:
        load_mtmd(library)
    except LibraryError as error:
        return error.message
    return ""


if __name__ == "__main__":
    main()
