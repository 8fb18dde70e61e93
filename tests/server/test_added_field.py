"""A field of a request is added in three files, and used in a fourth: every API accepts it then.

The test adds a field to a copy of the package, and serves that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import eaglelocal

TESTS = Path(__file__).parents[1]
# the field: the answer ends after its first token. By file: what is inserted, and the line before which it is
EDITS = {
    "server/schema.py": ("    single: bool | None = None\n", "    cache_prompt: "),
    "server/request_reader.py": ("        single=bool(body.single),\n", "        reuses_cache=body."),
    "core/request.py": ("    single: bool = False\n", "    line_limit_s: "),
    "engine/running_answer.py": (
        '            if request.single:\n                return "stop"\n',
        '            if "\\n" in piece.text and self._is_late',
    ),
}
MESSAGES = [{"role": "user", "content": "Hello"}]
CALLS: Mapping[str, Mapping[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 8},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 8},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 8},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
    "/completion": {"prompt": "Hello", "n_predict": 8},
    "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"num_predict": 8, "ignore_eos": True}},
}
COUNTS = ("completion_tokens", "output_tokens", "tokens_predicted", "eval_count")  # names of the answer's tokens
PROGRAM = """
import json, sys
from doubles.running_server import served, typing
calls, counts = json.loads(sys.stdin.read())
with served(typing()) as server:
    for path, body in calls.items():
        for field in ({}, {"single": True}):
            fields = {"options": body["options"] | field} if "options" in body else {"ignore_eos": True, **field}
            reply = server.http.post(path, json=body | fields).raise_for_status().json()
            usage = reply.get("usage", reply)
            print(next(usage[name] for name in counts if name in usage))
"""


def add_field(package: Path) -> None:
    for name, (added, before) in EDITS.items():
        text = (package / name).read_text()
        assert text.count(before) == 1, name
        (package / name).write_text(text.replace(before, added + before))


def test_a_field_is_added_in_four_files_and_read_by_every_api(tmp_path: Path) -> None:
    shutil.copytree(Path(eaglelocal.__file__).parent, tmp_path / "eaglelocal")  # with its bytecode, which stays valid
    add_field(tmp_path / "eaglelocal")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([CALLS, COUNTS]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{TESTS}"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == [8, 1] * len(CALLS)
