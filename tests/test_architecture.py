"""The house rules that can be checked: fences, what commands load, names, sizes. Layers are import-linter's."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from doubles.sources import nodes_of

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "eaglelocal"
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "textual", "starlette", "llama_cpp", "PIL", "jinja2", "gguf", "huggingface_hub", "mcp")

# what only these rooms may import, and whatever lies below it
FENCES: dict[str, tuple[str, ...]] = {
    "ctypes": ("backend",),
    "llama_cpp": ("backend",),
    "llguidance": ("backend",),
    "PIL": ("backend", "conversation"),
    "torch": ("training",),
    "textual": ("tui",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "httpx": ("client",),
    "httpx2": ("tool_servers",),
    "mcp": ("tool_servers",),
    "mcp_types": ("tool_servers",),
    "anyio": ("tool_servers",),
    "pynvml": ("probe",),
    "psutil": ("probe", "processes"),
    "huggingface_hub": ("hub",),
    "typer": ("cli",),
    "unittest.mock": (),
}
SINK = "cli/output.py"  # the only file that prints


def imported(node: ast.AST) -> list[str]:
    """The full names that a statement or a call imports; `from a import b` may be the module a or a.b."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            return [name] if called in ("import_module", "__import__") else []
    return []


def broken_fences(nodes: Iterable[ast.AST], path: str) -> list[str]:
    """Lines of the file at `path` below the package that import or print what their room must not."""
    room, found = path.split("/")[0], []
    for node in nodes:
        for name in imported(node):
            fences = [fence for fence in FENCES if f"{name}.".startswith(f"{fence}.")]
            found += [f"{path}: {fence}" for fence in fences if room not in FENCES[fence]]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print" and path != SINK:
            found.append(f"{path}: print")
    return found


def test_fenced_modules_stay_in_their_rooms() -> None:
    paths = {file: file.relative_to(PACKAGE).as_posix() for file in FILES}
    assert [fence for file, path in paths.items() for fence in broken_fences(nodes_of(file), path)] == []


MADE_UP = """
import ctypes as C, json
from llama_cpp.llama_cpp import llama_decode
from unittest import mock
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from torch.nn import Module
def late():
    import psutil
    importlib.import_module("textual.app")
    __import__("pynvml")
    print("here")
class Typer:
    from typer import Option
"""


def test_a_broken_fence_is_found_wherever_it_stands() -> None:
    fences = ("ctypes", "llama_cpp", "unittest.mock", "torch", "psutil", "textual", "pynvml", "print", "typer")
    made_up = tuple(ast.walk(ast.parse(MADE_UP)))
    assert set(broken_fences(made_up, "engine/made_up.py")) == {f"engine/made_up.py: {fence}" for fence in fences}
    assert not {"cli/output.py: print", "cli/output.py: typer"} & set(broken_fences(made_up, "cli/output.py"))
    assert "settings.py: ctypes" in broken_fences(made_up, "settings.py")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("backend/a.py", "import ctypes\nfrom llama_cpp import llama_cpp"),
        ("training/a.py", "import torch.nn.functional as F"),
        ("engine/a.py", "import torchless\nfrom .torch import x\nfrom eaglelocal.core import torch\nfootprint()"),
        ("engine/a.py", "text = 'import torch'\nconsole.print('x')"),
    ],
)
def test_text_without_a_broken_fence_is_not_reported(path: str, source: str) -> None:
    assert broken_fences(ast.walk(ast.parse(source)), path) == []


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


LIGHT = (
    *("--help", "--version", "config show", "ps", "chat --help", "top --help", "doctor"),
    *("probe --json", "plan --json", "ls", "show demo@native", "pull demo"),
)


@pytest.mark.parametrize("arguments", [command.split() for command in LIGHT], ids=" ".join)
def test_light_commands_load_nothing_heavy(arguments: list[str]) -> None:
    assert loaded_by(*arguments) == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, eaglelocal; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


# what a process does not import, because it would take longer to start, or hold more memory
LEFT_OUT = [
    ("import eaglelocal.text.templates.rendering", "numpy"),
    ("import eaglelocal.preparation.autoplan, eaglelocal.preparation.coresidency", "llguidance"),
    (
        "import eaglelocal.preparation.autoplan, eaglelocal.preparation.coresidency, eaglelocal.preparation.decision",
        "numpy",
    ),
    ("import eaglelocal.cli.serve", "uvicorn"),
    ("import eaglelocal.cli.main", "typer"),
    ("import eaglelocal.cli.main", "eaglelocal.core.events"),
    ("import eaglelocal.server.app", "numpy"),
    ("import eaglelocal.server.app", "eaglelocal.server.openapi"),
    ("from eaglelocal.loading.engine_builder import prepare; prepare()", "llama_cpp.llama"),
    ("from eaglelocal.loading.engine_builder import prepare; prepare()", "importlib.metadata"),
]


@pytest.mark.parametrize(("code", "module"), LEFT_OUT, ids=[module for _, module in LEFT_OUT])
def test_what_is_not_needed_is_not_imported(code: str, module: str) -> None:
    code = f"import sys; {code}; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_server_starts_without_the_schemas_of_bodies_and_replies() -> None:
    """They are built on their first use."""
    code = (
        "import eaglelocal.server.app\n"
        "from eaglelocal.server.schema import ReplyModel\n"
        "from eaglelocal.server.schema import Body\n"
        "print(*[m.__name__ for b in (Body, ReplyModel) for m in b.__subclasses__() if m.__pydantic_complete__])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_no_drawer_files() -> None:
    drawers = {"utils", "helpers", "common", "misc", "util"}
    assert [f for f in FILES if f.stem in drawers] == []


def test_files_are_of_readable_size_and_say_what_they_know() -> None:
    assert [file for file in FILES if len(file.read_text().splitlines()) > 500] == []
    modules = ((file, nodes_of(file)[0]) for file in FILES)
    silent = [file for file, module in modules if isinstance(module, ast.Module) and not ast.get_docstring(module)]
    assert [file for file in silent if file.read_text().strip()] == []


def functions_of(file: Path) -> list[ast.FunctionDef]:
    return [node for node in nodes_of(file) if isinstance(node, ast.FunctionDef)]


def test_functions_are_short() -> None:
    long = [
        f"{file.relative_to(PACKAGE)}:{f.name}"
        for file in FILES
        for f in functions_of(file)
        if (f.end_lineno or 0) - f.lineno > 50
    ]
    assert long == []


def test_no_mocks_in_tests() -> None:
    suspects = [file for file in (ROOT / "tests").rglob("*.py") if "unittest.mock" in file.read_text()]
    nodes = ((file, node) for file in suspects for node in nodes_of(file))
    assert [file for file, node in nodes if any(name.startswith("unittest.mock") for name in imported(node))] == []


def test_nothing_below_the_engine_knows_which_drafter_runs() -> None:
    names = ("eagle3", "draft_model", "ngram")
    rooms = ("engine", "worker", "scheduler", "speculation")
    found = [
        f"{file.relative_to(PACKAGE)}: {name}"
        for room in rooms
        for file in (PACKAGE / room).rglob("*.py")
        for name in names
        if name in file.read_text()
    ]
    assert found == []


def imports_dataclass(node: ast.ImportFrom) -> bool:
    return any(each.name == "dataclass" for each in node.names)


def test_dataclasses_are_made_in_one_way() -> None:
    """The standard library's take a sixth of a start."""
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        for node in nodes_of(file)
        if (isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and imports_dataclass(node))
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "dataclasses.dataclass")
    }
    assert found == {"core/records.py"}


# who reads JSON or TOML otherwise than by core's readers, and why
OWN_READERS = {
    "core/json_text.py": "it is the reader",
    "core/toml_text.py": "it is the reader",
    "text/tool_calls/json_spans.py": "looks for the ends of values in a text that `read_json` has read",
    "server/json_body.py": "names the place of what is no number, as `read_json` has none",
    "processes/limited_process.py": "reads what a process of ours wrote, out of values that were read already",
    "hub/heads/safetensors_files.py": "refuses repeated names; a header may be long, and is not nested",
}


def test_json_and_toml_are_read_in_one_way() -> None:
    """Python's readers fail by RecursionError, which is no ValueError, or hand on what is too deep for others."""
    words = ("json.load", "json.loads", "json.JSONDecoder", "tomllib.load", "tomllib.loads")
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        for node in nodes_of(file)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in words)
        or (isinstance(node, ast.ImportFrom) and node.module in ("json", "tomllib"))
    }
    assert found == set(OWN_READERS)


# who starts processes with all of our environment, secrets included, and why
WITH_SECRETS = {
    "cli/launch.py": "the agent that the user chose, and a server, which needs its keys",
    "processes/editor.py": "the editor that the user chose",
    "tui/terminal/clipboard.py": "the desktop's own programs",
}


def starts_with_all(node: ast.Call) -> bool:
    """Return whether a call starts a process with another environment than is made for our children."""
    starts = (
        "subprocess.Popen",
        "subprocess.run",
        "subprocess.check_output",
        "asyncio.create_subprocess_exec",
        "os.system",
    )
    if ast.unparse(node.func) not in starts:
        return False
    given = next((ast.unparse(each.value) for each in node.keywords if each.arg == "env"), "")
    return not given.startswith("make_environment(") and given != "environ"


def test_children_get_no_secrets() -> None:
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and starts_with_all(node)
    }
    assert found == set(WITH_SECRETS)


def test_digits_are_those_that_int_reads() -> None:
    """`"²".isdigit()` is true, and `int("²")` raises ValueError."""
    found = {
        (file.relative_to(PACKAGE).as_posix(), node.attr)
        for file in FILES
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in ("isdigit", "isnumeric")
    }
    assert found == set()


def test_the_home_folder_is_asked_for_in_one_way() -> None:
    """`Path.home()` fails where it is not known, as for a user that a container makes up."""
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("Path.home", "platformdirs.user_data_dir")
    }
    assert found == {"locations.py"}
