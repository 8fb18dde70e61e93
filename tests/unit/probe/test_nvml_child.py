"""NVML in its own process: the real binding over a library of ours that answers, hangs or dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eaglelocal.probe import nvml_gpus
from eaglelocal.probe.machine import Gpu
from eaglelocal.probe.nvml_gpus import ask_gpus, has_driver
from eaglelocal.probe.probe import probe
from eaglelocal.probe.subprocess_calls import NoAnswer, ask_text

SOURCE = Path(__file__).parents[2] / "doubles" / "nvml.c"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the double is a library of Linux")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    file = folder / "libnvidia-ml.so.1"
    compiler = os.environ.get("CC") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(file), str(SOURCE)], check=True, timeout=60)
    return folder


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return monkeypatch


def test_the_binding_reads_a_card(driver: pytest.MonkeyPatch) -> None:
    assert ask_gpus() == (
        Gpu(
            index=0,
            name="NVIDIA Double",
            driver="550.120",
            capability="8.9",
            total_bytes=8 << 30,
            free_bytes=5 << 30,
            used_bytes=3 << 30,
        ),
    )


def test_a_driver_that_hangs_is_left_after(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("NVIDIA_DOUBLE", "hang")
    begun = time.monotonic()
    with pytest.raises(NoAnswer, match="NVIDIA's driver did not answer within 1 s"):
        ask_gpus(timeout_s=1.0)
    assert time.monotonic() - begun < 3


def test_a_driver_that_dies_costs_only_its_cards(driver: pytest.MonkeyPatch, library: Path) -> None:
    driver.setenv("NVIDIA_DOUBLE", "die")
    driver.setattr(nvml_gpus, "DRIVER_FILES", (str(library / "libnvidia-ml.so.1"),))
    machine = probe()
    assert machine.unanswered == ("NVIDIA's library could not be used (code -6)",)
    assert machine.cpu.usable_threads >= 1


def test_another_users_folder_is_not_imported_from(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit(3)")
    driver.chdir(tmp_path)
    assert len(ask_gpus()) == 1


@pytest.mark.parametrize("mark", ["proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg"])
def test_where_a_driver_may_be(mark: str, tmp_path: Path) -> None:
    assert not has_driver(tmp_path, "linux")
    (tmp_path / mark).parent.mkdir(parents=True)
    (tmp_path / mark).touch()
    assert has_driver(tmp_path, "linux")
    assert not has_driver(tmp_path, "darwin")


def test_programs_that_fail_or_are_not_there() -> None:
    assert ask_text(("/nonexistent/program",), timeout_s=1) is None
    assert ask_text(("false",), timeout_s=5) is None
    assert ask_text(("sleep", "5"), timeout_s=0.1) is None
    assert ask_text(("echo", " 38 "), timeout_s=5) == "38"
