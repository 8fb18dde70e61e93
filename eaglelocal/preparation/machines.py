"""Find out for which machine to plan: this one as it is now, or one of the catalog."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eaglelocal.backend.cpu_attention import is_supported
from eaglelocal.catalog.catalog import Catalog, KnownMachine
from eaglelocal.core.amounts import GIB
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.planning.machine_spec import (
    MachineSpec,
    add_rpc_devices,
    make_known_spec,
    make_machine_spec,
    replace_ram,
)
from eaglelocal.probe.probe import probe
from eaglelocal.probe.rpc_servers import find_rpc_servers


def this_machine(known: Mapping[str, KnownMachine]) -> MachineSpec:
    """Return this machine as it is now. `known`: the catalog's machines."""
    return dataclasses.replace(make_machine_spec(probe(), known), has_attention_kernel=is_supported())


def add_servers(machine: MachineSpec, addresses: Sequence[str]) -> MachineSpec:
    """Return the machine with the devices of rpc-servers at these addresses.

    Raises the errors of `find_rpc_servers`.
    """
    backends = machine.probed.llama_cpp.backends if machine.probed is not None else ()
    return add_rpc_devices(machine, find_rpc_servers(addresses, backends)) if addresses else machine


def find_machine(catalog: Catalog, options: RunOptions, name: str | None, ram_gib: float | None) -> MachineSpec:
    """Return the named machine of the catalog with `ram_gib` of RAM; without both, this one with its rpc-servers.

    Raises UsageError, or the errors of `find_rpc_servers`.
    """
    if name is not None or ram_gib is not None:
        return find_known_machine(name, catalog, ram_gib)
    return add_servers(this_machine(catalog.machines), options.rpc)


def find_known_machine(name: str | None, catalog: Catalog, ram_gib: float | None) -> MachineSpec:
    """Return a machine of the catalog, with `ram_gib` of RAM if given.

    Raises UsageError on an unknown machine, or on `ram_gib` without a machine that has RAM beside its GPUs.
    """
    known = None if name is None else catalog.machine(name)
    if known is None or (ram_gib is not None and not known.num_gpus):
        why = "the RAM of this machine is known" if known is None else f"{known.name} has no separate RAM"
        raise UsageError(f"--ram needs --machine with a graphics card: {why}", hint="--machine rtx-3090 --ram 64")
    machine = make_known_spec(known)
    return machine if ram_gib is None else replace_ram(machine, int(ram_gib * GIB))
