"""Devices of rpc-servers in a plan: their layers, the output and the draft here, and what the link costs."""

from __future__ import annotations

from dataclasses import replace

from doubles.catalog_plans import GIB, machine_named, option

from eaglelocal.backend.model import Placement
from eaglelocal.core.run_options import RunOptions
from eaglelocal.loading.context_parts import keep_from_rpc
from eaglelocal.memory.budget import RAM, FreeMemory
from eaglelocal.memory.placement import choose_gpus, place_blocks
from eaglelocal.planning.machine_spec import MachineSpec, add_rpc_devices
from eaglelocal.planning.plan_search import search_plan
from eaglelocal.planning.speed import make_curve
from eaglelocal.probe.rpc_servers import RpcDevice, RpcServer
from eaglelocal.worker.exit_reason import ExitReason


def server(*free_gib: int, latency_s: float = 1e-3, bytes_s: float = 1e8) -> RpcServer:
    devices = tuple(RpcDevice(free_bytes=gib * GIB, total_bytes=gib * GIB) for gib in free_gib)
    return RpcServer(address="box:50052", devices=devices, latency_s=latency_s, bytes_s=bytes_s)


def small_machine(*servers: RpcServer) -> MachineSpec:
    return add_rpc_devices(machine_named("cpu-16gb"), servers)


def test_their_devices_come_first_and_are_numbered_over_all_servers() -> None:
    machine = add_rpc_devices(machine_named("rtx-3090"), [server(8, 8), replace(server(4), address="den:1")])
    assert [gpu.name for gpu in machine.gpus] == ["RPC0", "RPC1", "RPC2", "CUDA0"]
    assert [gpu.label for gpu in machine.gpus][:3] == ["box:50052", "box:50052", "den:1"]


def test_the_output_stays_here() -> None:
    assert place_blocks(3, ["RPC0"], [1.0], gpu_layers=None) == ("RPC0", "RPC0", "RPC0", RAM)
    assert place_blocks(3, ["RPC0"], [1.0], gpu_layers=3) == (RAM, "RPC0", "RPC0", RAM)
    assert place_blocks(3, ["RPC0", "CUDA0"], [1.0, 1.0], gpu_layers=None) == ("RPC0", "RPC0", "CUDA0", "CUDA0")


def test_an_integrated_gpu_is_kept_beside_a_server_as_llama_cpp_does() -> None:
    rooms = (FreeMemory(RAM, 1), FreeMemory("Vulkan0", 1, True), FreeMemory("RPC0", 1))
    assert [room.device for room in choose_gpus(rooms, device=None, split="layer")] == ["RPC0", "Vulkan0"]


def test_a_draft_is_loaded_here() -> None:
    placements = [Placement(), Placement(d2t_device="RPC0")]
    target, draft = keep_from_rpc(placements, [FreeMemory("RPC0", 1)])
    assert target.keeps_output and (draft.devices, draft.gpu_layers, draft.d2t_device) == ("CPU", 0, None)
    target, draft = keep_from_rpc(
        [Placement(), Placement(shares=(0.0, 1.0))], [FreeMemory("RPC0", 1), FreeMemory("CUDA0", 1)]
    )
    assert not target.keeps_output and (draft.devices, draft.shares) == ("CUDA0", (1.0,))


def test_a_model_too_large_for_this_machine_fits_with_a_server() -> None:
    options = RunOptions(rpc=("box:50052",))
    large = [option("qwen3-32b", "Q4_K_M")]
    assert search_plan(large, small_machine(), options).chosen is None
    chosen = search_plan(large, small_machine(server(24)), options).chosen
    assert chosen is not None
    loads = {load.device: load for load in chosen.memory.used}
    assert loads["RPC0"].weights > 0 and loads[RAM].weights > 0  # embeddings and output


def test_the_link_costs_what_was_measured() -> None:
    shape = option("qwen3-8b", "Q4_K_M")
    where = place_blocks(shape.shape.n_layer, ["RPC0"], [1.0], gpu_layers=None)

    def step_s(latency_s: float, bytes_s: float, num_rows: int) -> float:
        machine = small_machine(server(24, latency_s=latency_s, bytes_s=bytes_s))
        return make_curve(shape.model, where, machine, None, kv_type="f16", measured=None).decode_s(num_rows)

    fast, slow = step_s(0.0, 1e15, 4), step_s(2e-3, 1e7, 4)
    assert abs(slow - fast - 2 * (2e-3 + 4 * shape.shape.n_embd * 4 / 1e7)) < 1e-6


def test_a_lost_server_is_named() -> None:
    lines = ("send failed (bytes_sent=0, size_to_send=8)", "Remote RPC server crashed or returned malformed response")
    error = ExitReason(-6, lines, rpc=("box:50052",)).error()
    assert error.message == "the connection to an rpc-server was lost: box:50052"
    assert "rpc-server" not in ExitReason(-6, lines).error().message.lower().replace("rpc server", "")
    assert "lost" not in ExitReason(-11, ("chatter",), rpc=("box:50052",)).error().message
