"""README and pages: what they link to; the commands, flags, keys and routes that they name; the plans that they show.

A page is checked against the program itself, so that renaming a flag shows which page still has the old name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from doubles.empty_home import home_variables
from typer.main import get_command

from eaglelocal.cli.command_table import make_app
from eaglelocal.conversation.slash_commands import COMMANDS, OTHER_NAMES
from eaglelocal.server.app import PATHS
from eaglelocal.settings import OWN_VARIABLES, PREFIX, READERS, Settings
from eaglelocal.tui.chat.chat_app import ChatApp
from eaglelocal.tui.chat.prompt_input import PromptInput
from eaglelocal.tui.display_options import CHAT_ACTIONS, CHAT_PURPOSES, MONITOR_ACTIONS
from eaglelocal.tui.mapped_keys import make_key_rows, map_keys

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
ALL = [README, *PAGES]
COMMANDS_PAGE = ROOT / "docs" / "commands.md"
WITH_LINKS = [*ALL, ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in ALL]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")  # which may go on in the next line
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")
OF_OTHERS = {"--jinja", "--no-repack", "--spec-type"}  # flags of llama-server, which the figures name
SHOWN = {  # the memory of the table of models, and a machine that has it
    "card of 8 GB": "rtx-4060",
    "12 GB": "rtx-3060",
    "16 GB": "rtx-4060-ti-16gb",
    "24 GB (3090, 4090)": "rtx-3090",
    "128 GB, shared with the GPU (Strix Halo)": "strix-halo",
    "no card, 16 GB of main memory": "cpu-16gb",
}
GIB = 2**30


# ---- links
def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub names them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[str]:
    """Into this repository."""
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not target.startswith(("http://", "https://")):
            yield target


def broken(page: Path) -> Iterator[str]:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = page if not name else (page.parent / name).resolve()
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("models.md", False),
        ("../README.md#start", False),
        ("#page", False),
        ("#gone", True),
        ("gone.md", True),
        ("models.md#gone", True),
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, link: str, is_broken: bool) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Tool\n\n## Start\n")
    (tmp_path / "docs" / "models.md").write_text("# Models\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text(f"# Page\n\n[see]({link})\n")
    assert bool(list(broken(page))) == is_broken


def test_every_page_can_be_reached_and_left() -> None:
    assert PAGES
    reached = {(README.parent / target.partition("#")[0]).resolve() for target in links(README)}
    assert [page.name for page in PAGES if page not in reached] == []
    assert [page.name for page in PAGES if "../README.md" not in links(page)] == []


# ---- commands and flags
def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and what is left of them. Raises LookupError where there is none."""
    command: Any = get_command(make_app())  # of the click that typer brings with it, or needs
    while below := getattr(command, "commands", {}):
        if not words or words[0].startswith("-"):
            break
        if words[0] not in below:
            raise LookupError(f"no command {words[0]}")
        command, words = below[words[0]], words[1:]
    return command, words


@cache
def flags_of(name: str) -> frozenset[str]:
    """As the help of a command tells them: `chat`, `config show`."""
    command, _ = command_of(name.split())
    return frozenset(FLAG.findall(command.get_help(command.make_context(name, [], resilient_parsing=True))))


@cache
def all_commands() -> frozenset[str]:
    return frozenset(get_command(make_app()).commands)


@cache
def every_flag() -> frozenset[str]:
    return frozenset().union(*(flags_of(name) for name in ("", "config show", *all_commands())))


def lines_of_code(page: Path) -> Iterator[str]:
    """Lines of blocks, and spans; in tables `|` is written with a stroke before it."""
    text = page.read_text(encoding="utf-8")
    for kind, block in FENCE.findall(text):
        if kind == "":
            yield from (line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines())
    yield from spans(page)


def spans(page: Path) -> list[str]:
    found = SPAN.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return [" ".join(span.replace("\\|", "|").split()) for span in found]


def calls(page: Path) -> Iterator[str]:
    """What follows each `eaglelocal`, up to the end of that command."""
    for line in lines_of_code(page):
        if not line.strip():
            continue
        found = re.findall(r"(?:^|[|&;] ?|/bin/| {2})eaglelocal +(.*)", line)
        for call in found:
            words = re.split(r" +# | \| | && |; ", call)[0].strip()
            if words != "COMMAND --help":  # of any
                yield words
        if not found and line.split()[0] in all_commands() and " --" in line:  # `serve --ctx 8192`
            yield line


def wrong_call(call: str) -> str:
    """What is wrong with it; empty: nothing."""
    words = shlex.split(call)
    try:
        command, rest = command_of(words)
    except LookupError as error:
        return str(error)
    if unknown := set(FLAG.findall(shlex.join(rest))) - flags_of(flagless(call)):
        return f"no {', '.join(sorted(unknown))}"
    if not rest or re.search(r"[\[|]", call):  # a form, no command
        return ""
    try:
        command.make_context(command.name, rest)
    except Exception as error:  # of whichever click it is
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return ""


@pytest.mark.parametrize("page", ALL, ids=NAMES)
def test_commands_are_understood(page: Path) -> None:
    wrong = {call: why for call in calls(page) if (why := wrong_call(call))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("chat", ""),
        ("config show --json", ""),
        ("chat [PROMPT]", ""),
        ("serve --max-loaded 1 --cache-ram 0", ""),
        ("caht", "caht"),
        ("serve --max-load 1", "--max-load"),
        ("chat one two", "unexpected"),
        ("plan --ram lots", "--ram"),
    ],
)
def test_a_wrong_command_is_found(call: str, why: str) -> None:
    assert why in wrong_call(call) and bool(wrong_call(call)) == bool(why)


@pytest.mark.parametrize("page", ALL, ids=NAMES)
def test_bodies_are_sent_as_they_are_taken(page: Path) -> None:
    for line in lines_of_code(page):
        words = shlex.split(line) if line.startswith("curl ") else []
        if "-d" in words:
            assert "Content-Type: application/json" in words, line
            assert json.loads(words[words.index("-d") + 1])


@pytest.mark.parametrize("page", ALL, ids=NAMES)
def test_flags_exist(page: Path) -> None:
    """Those that stand alone; of a command they are checked with it."""
    alone = [line for line in lines_of_code(page) if line.startswith("-")]
    named = {flag for line in alone for flag in FLAG.findall(line)}
    assert named - every_flag() - OF_OTHERS == set()


def test_flags_of_the_table_of_commands_are_theirs() -> None:
    table = COMMANDS_PAGE.read_text(encoding="utf-8").partition("| | |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        _, commands, purpose, _ = re.split(r"(?<!\\)\|", row)
        own = frozenset().union(*(flags_of(flagless(call)) for call in re.findall(r"`eaglelocal ([^`]+)`", commands)))
        assert set(FLAG.findall(purpose)) - own == set(), commands


def flagless(call: str) -> str:
    """`stop [PORT]` -> `stop`"""
    words = shlex.split(call)
    _, rest = command_of(words)
    return " ".join(words[: len(words) - len(rest)])


def test_flags_are_looked_for() -> None:
    found = {call.split()[0] for page in ALL for call in calls(page) if call}
    assert all_commands() - found == set(), "commands that no page tells"
    mentioned = {flag for page in ALL for line in lines_of_code(page) for flag in FLAG.findall(line)}
    assert {"--models", "--max-loaded", "--cache-ram", "--n-cpu-moe"} <= mentioned
    assert mentioned >= OF_OTHERS


# ---- the chat, settings, routes
def test_slash_commands_are_those_of_the_chat() -> None:
    named = {
        span.split()[0] for page in ALL for span in SPAN.findall(page.read_text(encoding="utf-8")) if span[0] == "/"
    }
    mentioned = {name for name in named if re.fullmatch(r"/[a-z]+", name)}
    routes = {path for path in PATHS if path.count("/") == 1}
    assert mentioned - routes - set(COMMANDS) - set(OTHER_NAMES) == set()
    assert set(COMMANDS) - mentioned == set()


def test_keys_are_those_of_the_chat() -> None:
    table = COMMANDS_PAGE.read_text(encoding="utf-8").partition("| key | |")[2].partition("\n\n")[0]
    mentioned = {
        key.lower() for row in table.splitlines() for key in row.split("|")[1:2] for key in key.strip().split(", ")
    }
    rows = make_key_rows(map_keys((*PromptInput.BINDINGS, *ChatApp.BINDINGS), {}), CHAT_PURPOSES)
    known = {key for row in rows for key in row.name.split(", ")}
    assert mentioned - known == {"---", "ctrl+p"}, "of which ctrl+p is Textual's"
    assert known - mentioned == {"ctrl+d", "alt+enter", "shift+enter", "ctrl+j"}, "which the table explains"


def test_settings_are_read(tmp_path: Path) -> None:
    (block,) = [text for _, text in FENCE.findall(COMMANDS_PAGE.read_text(encoding="utf-8")) if "[keys]" in text]
    file = tmp_path / "config.toml"
    file.write_text(block)
    settings = Settings.load({}, {}, file)
    assert {name for name, _ in settings.set_by} == set(tomllib.loads(block))


def test_actions_that_can_have_a_key_are_listed() -> None:
    text = COMMANDS_PAGE.read_text(encoding="utf-8").partition("[keys]")[2]
    for screen, actions in (("chat", CHAT_ACTIONS), ("monitor", MONITOR_ACTIONS)):
        listed = text.partition(f"- **{screen}:**")[2].partition("\n- ")[0].partition("\n\n")[0]
        assert re.findall(r"`(\w+)`", listed) == sorted(actions)


def test_variables_exist() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in ALL)
    named = set(re.findall(rf"{PREFIX}([A-Z_]+)\b", text))
    assert named and {name for name in named if name.lower() not in READERS} == OWN_VARIABLES


def test_routes_exist() -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = text.partition("## What it answers")[2].partition("\n## ")[0]
    mentioned = {span for span in SPAN.findall(table) if span.startswith("/")}
    assert len(mentioned) > 20
    assert mentioned - PATHS - {"/openapi.json"} == set()


# ---- installing
MAX_WORDS, MAX_CELL_WORDS = 900, 60


def test_a_person_reads_the_front_page_in_a_minute() -> None:
    assert len(README.read_text(encoding="utf-8").split()) < MAX_WORDS
    for page in ALL:
        cells = [cell for line in page.read_text(encoding="utf-8").splitlines() for cell in line.split("|")[1:-1]]
        assert [cell for cell in cells if len(cell.split()) > MAX_CELL_WORDS] == []


def test_the_lines_that_build_llama_cpp_build_it_again() -> None:
    """A plain `pip install .` keeps a llama.cpp that was built for the processor."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (required,) = [name for name in project["dependencies"] if name.startswith("llama-cpp-python")]
    lines = [line for page in ALL for line in re.findall(r"CMAKE_ARGS=[^`\n]+", page.read_text(encoding="utf-8"))]
    assert len(lines) >= 5
    for line in lines:
        assert line.endswith(f"--no-cache-dir --force-reinstall --no-deps {required}")


# ---- plans
def planned(home: Path, *arguments: str) -> str:
    """By a person without files, variables or a GPU of ours."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "XDG_", "HF_"))}
    environ |= home_variables(home)
    environ |= {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "eaglelocal", "plan", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "models.md"], ids=lambda page: page.name)
def test_the_plan_that_is_shown_is_what_is_printed(tmp_path: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (shown,) = [block for _, block in FENCE.findall(text) if block.startswith("$ eaglelocal plan")]
    first, _, rest = shown.partition("\n")
    assert rest.strip() == planned(tmp_path, *shlex.split(first)[3:]).strip()


def rows(page: Path) -> Iterator[list[str]]:
    """Of its table of models: memory, model, context and need."""
    table = page.read_text(encoding="utf-8").partition("| memory | for example |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("memory", SHOWN)
def test_models_fit_as_they_are_said_to(tmp_path: Path, memory: str) -> None:
    plan = json.loads(planned(tmp_path, "--machine", SHOWN[memory], "--json").splitlines()[-1])["chosen"]
    (row,) = [row for row in rows(ROOT / "docs" / "models.md") if row[0] == memory]
    assert row[1].split("`")[1] == f"{plan['target']}:{plan['quant']}"
    assert row[2] == f"{plan['ctx']}, {plan['kv_type']}"
    used = {one["device"]: one["used_bytes"] for one in plan["memory"]["devices"]}
    (holder,) = used.keys() - {"RAM"} or {"RAM"}
    assert row[3] == f"{used[holder] / GIB:.1f} GiB"


def test_a_machine_of_ones_own_is_read(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (block,) = [block for _, block in FENCE.findall(text) if block.startswith("[mine]")]
    folder = tmp_path / "config" / "eaglelocal" / "machines"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(block)
    assert "RTX 3060 Ti" in planned(tmp_path, "--machine", "mine")


# ---- the package
def test_the_pages_are_in_the_source_distribution(tmp_path: Path) -> None:
    from hatchling.builders.sdist import SdistBuilder

    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(built) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    linked = {(page.parent / target.partition("#")[0]).resolve() for page in ALL for target in links(page)}
    assert {str(file.relative_to(ROOT)) for file in linked if file.is_file()} - inside == set()
    assert {str(page.relative_to(ROOT)) for page in ALL} - inside == set()
