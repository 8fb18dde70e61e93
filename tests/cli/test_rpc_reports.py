"""What `plan` and `show` say of rpc-servers: their addresses, their memory, the measured link."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles.catalog_plans import GIB, chosen_of, machine_named, option
from doubles.scripted_rpc import ScriptedRpc, listening

from eaglelocal.cli import main
from eaglelocal.cli.plan_report import outcome_object, report_lines
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import RpcServerError
from eaglelocal.planning.machine_spec import add_rpc_devices
from eaglelocal.planning.plan_search import SearchOutcome, search_plan
from eaglelocal.probe.rpc_servers import RpcDevice, RpcServer


def plan_with(machine: str, num_servers: int) -> SearchOutcome:
    device = RpcDevice(free_bytes=24 * GIB, total_bytes=26 * GIB)
    servers = [
        RpcServer(address=f"box{number}:50052", devices=(device,), latency_s=3e-4, bytes_s=1.12e8)
        for number in range(num_servers)
    ]
    options = RunOptions(rpc=tuple(server.address for server in servers), ctx=4096)
    return search_plan([option("qwen3-32b", "Q4_K_M")], add_rpc_devices(machine_named(machine), servers), options)


@pytest.mark.parametrize(
    ("machine", "num_servers", "places"),
    [
        ("cpu-16gb", 1, "on the rpc-server"),
        ("cpu-16gb", 2, "on the rpc-servers"),
        ("cuda-8gb", 1, "on the GPU and the rpc-server"),
        ("2x-rtx-3090", 2, "on the GPUs and the rpc-servers"),
    ],
)
def test_a_plan_names_where_layers_lie_and_the_links(machine: str, num_servers: int, places: str) -> None:
    outcome = plan_with(machine, num_servers)
    shown = " ".join(" ".join(report_lines(outcome, chosen_of(outcome), show_all=False)).split())
    assert f"layers {places}" in shown.partition(" speed ")[0]
    for number in range(num_servers):
        assert f"RPC{number} at box{number}:50052: 0.30 ms, 112 MB/s, both measured" in shown
    assert "RPC is neither encrypted nor authenticated" in shown
    devices = {each["device"]: each for each in json.loads(json.dumps(outcome_object(outcome)))["devices"]}
    assert devices["RPC0"]["link"] == {"address": "box0:50052", "latency_s": 3e-4, "bytes_s": 1.12e8}
    assert devices["RPC0"]["free_bytes"] == 24 * GIB and devices["RAM"]["link"] is None


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("folders")
def test_show_asks_the_servers_that_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLELOCAL_RPC", "127.0.0.1:1")  # of the settings: not asked, as it may be busy
    with listening(ScriptedRpc(memories=((22 * GIB, 24 * GIB), (5 * GIB, 8 * GIB)))) as address:
        assert main.run(["show", "demo@native", "--rpc", address]) == 0
        shown = capsys.readouterr().out
        assert main.run(["show", "demo@native", "--rpc", address, "--json"]) == 0
        (server,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rpc"]
    assert f"server    {address}: 22.0 GiB of 24.0 GiB free, 5.0 GiB of 8.0 GiB free; " in shown
    assert "both measured" in shown and "RPC is neither encrypted nor authenticated" in shown
    assert server["address"] == address and server["bytes_s"] > 0
    assert [each["free_bytes"] for each in server["devices"]] == [22 * GIB, 5 * GIB]
    assert main.run(["show", "demo@native"]) == 0
    assert "server" not in capsys.readouterr().out
    with pytest.raises(RpcServerError, match=r"cannot reach the rpc-server 127\.0\.0\.1:1"):
        main.run(["show", "demo@native", "--rpc", "127.0.0.1:1"])
