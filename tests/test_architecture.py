"""The house rules that can be checked: layers, what commands load, names, sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "eaglelocal"
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "textual", "fastapi", "llama_cpp")


def loaded_by(*arguments: str) -> set[str]:
    """Heavy modules in sys.modules after a command ran in a fresh interpreter."""
    code = (
        "import sys\n"
        f"sys.argv = ['eaglelocal', *{arguments!r}]\n"
        "try:\n"
        "    from eaglelocal.cli.main import main\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print('loaded', *[m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("probe", "--json"), ("config", "show")])
def test_light_commands_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert loaded_by(*arguments) == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, eaglelocal; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_no_drawer_files() -> None:
    drawers = {"utils", "helpers", "common", "misc", "util"}
    assert [f for f in FILES if f.stem in drawers] == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_files_are_of_readable_size_and_say_what_they_know(file: Path) -> None:
    source = file.read_text()
    assert len(source.splitlines()) <= 500
    if source.strip():
        assert ast.get_docstring(ast.parse(source)), f"{file} has no module docstring"


def functions_of(file: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]


def test_functions_are_short() -> None:
    long = [
        f"{file.relative_to(PACKAGE)}:{f.name}"
        for file in FILES
        for f in functions_of(file)
        if (f.end_lineno or 0) - f.lineno > 50
    ]
    assert long == []


def test_no_mocks_in_tests() -> None:
    word = "unittest" + ".mock"
    assert [f for f in (ROOT / "tests").rglob("*.py") if word in f.read_text()] == []


def test_nothing_below_the_engine_knows_which_drafter_runs() -> None:
    names = ("eagle3", "draft_model", "ngram")
    rooms = ("engine", "scheduler", "speculation")
    found = [
        f"{file.relative_to(PACKAGE)}: {name}"
        for room in rooms
        for file in (PACKAGE / room).glob("*.py")
        for name in names
        if name in file.read_text()
    ]
    assert found == []
