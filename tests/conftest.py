"""Settings of the whole run. Machines are shared: a test may be slow, so hypothesis sets no deadlines."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.programs import interruptible
from hypothesis import HealthCheck, settings

from eaglelocal import locations

# Hundreds of programs are started, and several processes read the tests: each would compile them anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

PLAIN, FULL, BOTH = "not slow and not full", "full", "full or not full"  # what -m says
FULL_MODULE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.full\b", re.MULTILINE)
SOME_FULL = re.compile(r"\bmark\.full\b|\bsome_of\(")  # see doubles/tiers.py
for name, count in (("plain", 20), ("full", 100)):
    settings.register_profile(name, max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("plain" if config.option.markexpr == PLAIN else "full")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what -m leaves out: a third of the time that it takes to collect."""
    if collection_path.suffix != ".py" or config.option.markexpr not in (PLAIN, FULL) or _is_named(config):
        return None
    text = collection_path.read_text()
    has_full = SOME_FULL.search(text) is not None
    return True if (not has_full if config.option.markexpr == FULL else FULL_MODULE.search(text)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless -m names them."""
    if "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than cores for the whole runs, for many tests wait for screens and servers; memory bounds that.

    What was named is run here, and so is what takes long, which takes memory too.
    """
    if _is_named(config) or config.option.markexpr not in (PLAIN, FULL, BOTH) or config.option.keyword:
        return 0
    # Else each worker's threads wait, spinning, for cores that the other workers use: training takes twice as long.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 7) + 1


def _is_named(config: pytest.Config) -> bool:
    """Return whether the command line names files."""
    return config.args_source is not pytest.Config.ArgsSource.TESTPATHS


@pytest.fixture(autouse=True, scope="session")
def interruptible_programs() -> Iterator[None]:
    """Also under nohup, what tests start can be interrupted."""
    with interruptible():
        yield


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What engines learn in tests is no experience: it must not reach the person who runs them. Nor do copies of heads.

    Nor do tests see that person's models: without a target, the best of them would answer. Nor fill the clipboard.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setattr("eaglelocal.tui.terminal.clipboard.PROGRAMS", ())
        patch.delenv("TMUX", raising=False)  # in which copying says something else
        copies = tmp_path_factory.mktemp("copies")  # `rm` tidies up there
        patch.setattr(locations, "light_heads_dir", lambda: copies)
        parsed = tmp_path_factory.mktemp("parsed")  # of profiles that tests write
        patch.setattr(locations, "parsed_profiles_dir", lambda: parsed)
        yield


def pytest_collection_finish() -> None:
    """Ten thousand tests are a large heap: no later collection should walk it."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Near-ties at which a drafted text differed from the plain one are counted and reported, never hidden."""
    flips = list(_recorded(terminalreporter, "flips"))
    if flips:
        terminalreporter.write_line(
            f"near-ties decided otherwise than plainly: {sum(flips)} in {len(flips)} drafted runs"
        )


def _recorded(reporter: pytest.TerminalReporter, name: str) -> Iterator[int]:
    for report in reporter.getreports("passed"):
        yield from (int(str(value)) for key, value in report.user_properties if key == name)
