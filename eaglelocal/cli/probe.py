"""`eaglelocal probe`: show this machine's hardware and llama.cpp, for people and as JSON."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output


def probe(
    as_json: flags.AsJson = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the memory bandwidth again.")] = False,
) -> None:
    """Show this machine: GPUs, CPU, memory, llama.cpp.

    \b
    eaglelocal probe
    eaglelocal probe --json | jq .memory
    """
    from eaglelocal.cli.reports.probe import machine_lines
    from eaglelocal.probe.bandwidth import add_bandwidth
    from eaglelocal.probe.machine import to_json
    from eaglelocal.probe.probe import probe as probe_machine

    output = standard_output()
    machine = add_bandwidth(probe_machine(), remeasure=measure)
    if as_json:
        return output.object(to_json(machine))
    output.lines(machine_lines(machine, now=time.time()))
    return None
