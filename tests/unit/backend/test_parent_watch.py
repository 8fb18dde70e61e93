"""Child processes end when their parent is killed, whatever they are doing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.tiers import some_of
from doubles.timeouts import wait_until

STARTS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), flush=True)
time.sleep(600)
"""
BUSY = "re.match('(a+)+b', 'a' * 64)"  # keeps the interpreter's lock
WATCHES = "import os, re, time; from eaglelocal.backend.parent_watch import end_with_parent; end_with_parent({}); "
CHILDREN = {
    "busy": WATCHES.format("") + f"print(os.getpid(), flush=True); {BUSY}",
    "busy, with a pipe": WATCHES.format("0") + f"print(os.getpid(), flush=True); {BUSY}",
    "asleep": WATCHES.format("") + "print(os.getpid(), flush=True); time.sleep(600)",
    "asks NVML": """
import os, time
from eaglelocal.probe import nvml_gpus
nvml_gpus.import_nvml = lambda: print(os.getpid(), flush=True) or time.sleep(600)
nvml_gpus.main()
""",
    "tries llama.cpp": f"""
import os, re
from eaglelocal.backend import llama_library
from eaglelocal.doctor import installation
def hang():
    print(os.getpid(), flush=True)
    {BUSY}
llama_library.load_library = hang
installation.main()
""",
}


@pytest.mark.parametrize("source", some_of(CHILDREN.values()), ids=list(CHILDREN))
def test_a_process_ends_with_its_killed_parent(source: str) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS, source], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert not has_ended(pid)
        finally:
            parent.kill()
    wait_until(lambda: has_ended(pid), "the process ends")


def test_it_goes_on_while_its_parent_lives_and_ends_where_the_pipe_ends() -> None:
    source = WATCHES.format("0") + "print(os.getpid(), flush=True); time.sleep(2.5); print('on', flush=True); " + BUSY
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", source], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline().strip() == str(child.pid)
        assert child.stdout.readline().strip() == "on"  # several looks later
        child.stdin.close()
        assert child.wait(60) == -9


def has_ended(pid: int) -> bool:
    """Gone, or a zombie of whoever took it over."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
