"""The wheel alone, away from the checkout, answers a question: package, data files and embedded model are all in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel's contents."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True, timeout=300)
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed / "site"), "XDG_CACHE_HOME": str(installed / "cache")}
    command = [sys.executable, "-P", "-m", "eaglelocal", *arguments]
    return subprocess.run(
        command, cwd=installed, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )


def test_the_wheel_chats_with_the_embedded_model(installed: Path) -> None:
    question = ("chat", "What is acceptance length?")
    done = run(installed, *question, "--target", "demo@native", "--temperature", "0", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert "bonus token" in answer["text"]
    assert answer["speculation"]["accepted_tokens"] > 0


def test_the_package_comes_from_the_wheel(installed: Path) -> None:
    done = run(installed, "--version")
    assert done.returncode == 0 and done.stdout.startswith("eaglelocal ")
    code = "import eaglelocal; print(eaglelocal.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed / "site")}
    command = [sys.executable, "-P", "-c", code]
    where = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).is_relative_to(installed)
