"""Every option that takes a path refuses a path that no file can have, in every command, in one line."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.empty_home import enter_empty_home
from doubles.tiers import some_of
from typer.main import get_command

from eaglelocal.cli.command_table import ALL, make_app
from eaglelocal.cli.import_head import resolve_out
from eaglelocal.cli.main import convert_error, main, run
from eaglelocal.core.user_paths import expand_path, quote_path
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.hub.target_resolver import demo_sources

PACKAGE = Path(__file__).parents[2] / "eaglelocal"
TARGET, HEAD = demo_sources()
PATHS = ("FILE", "FOLDER", "PATH", "REF", "HEAD", "TARGET")  # in metavars
NO_PATHS = ("--target-repo", "--draft-repo")
DEMO = ("--target", "demo@native")
# what a command needs besides, by its name or by its name and the option
BESIDE: dict[str, tuple[str, ...]] = {
    "chat": ("hello", *DEMO),
    "chat --target": ("hello",),
    "serve": ("--no-tui", "--port", "0", *DEMO),
    "serve --target": ("--no-tui", "--port", "0"),
    "launch": ("aider", "--print", "--url", "none"),
    "bench": DEMO,
    "bench --target": (),
    "bench --against-key-file": (*DEMO, "--against", "http://127.0.0.1:9"),
    "train": DEMO,
    "train --target": (),
    "tune": DEMO,
    "tune --target": (),
    "import head": DEMO,
    "import": (str(HEAD),),
    "serve --ssl-cert": ("--no-tui", "--ssl-key", str(HEAD)),
    "serve --ssl-key": ("--no-tui", "--ssl-cert", str(HEAD)),
    "export what": ("--out", "./head"),
    "export target": ("vllm",),
    "export --draft": ("vllm", "demo@native", "--target-repo", "a/b", "--revision", "1" * 40),
    "export --out": (str(HEAD),),
    "export --check": ("helm",),
}
UNASKED = {
    "forget target": "a file of which answers are kept may be gone",
    "launch --target": "only shows that a server would be started",
    "import --out": "is read after the head",  # see test_a_new_head_has_a_possible_path
    "pull --draft": "a hub is asked first",
    "pull --mmproj": "a hub is asked first",
}
WRONG = {
    "user": "~nosuchuser/k.gguf",
    "nul": "a\0b.gguf",
    "name": "x" * 300 + ".gguf",
    "path": "x/" * 3000 + "k.gguf",
    "half": "\ud800.gguf",
}


def list_path_options() -> Iterator[str]:
    for command, parsed in get_command(make_app(ALL)).commands.items():  # type: ignore[attr-defined]
        for option in parsed.params:
            flag = next((name for name in option.opts if name.startswith("--")), option.name)
            names_path = any(word in (option.metavar or "") for word in PATHS)
            if names_path and flag not in NO_PATHS and f"{command} {flag}" not in UNASKED:
                yield f"{command} {flag}"


OPTIONS = sorted(list_path_options())


def test_the_options_are_found() -> None:
    assert len(OPTIONS) > 40 and {"serve --api-key-file", "chat --image", "train --work", "rm ref"} <= set(OPTIONS)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    enter_empty_home(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


def fail(arguments: list[str]) -> EagleLocalError:
    with pytest.raises(Exception) as raised:  # whatever a person would see
        run(arguments)
    return convert_error(raised.value)


@pytest.mark.parametrize("option", some_of(OPTIONS, 12))
def test_an_impossible_path_is_reported_by_name(option: str, tmp_path: Path) -> None:
    command, flag = option.split()
    beside = BESIDE.get(option, BESIDE.get(command, ()))
    for value in WRONG.values():
        error = fail([command, *beside, *([flag] if flag.startswith("--") else []), value])
        assert "this is a bug" not in error.message and error.exit_code in (1, 2)
        assert any(part in error.message for part in (value[:30], repr(value)[1:-1][:30])), error.message
    assert list(tmp_path.glob("~*")) == []


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_a_new_head_has_a_possible_path(value: str) -> None:
    with pytest.raises(UsageError):
        resolve_out(value, "head.gguf")


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("name", ["API_KEY_FILE", "SSL_CERT", "MMPROJ", "LORA"])
def test_neither_is_one_of_a_variable_or_of_the_config_file(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config/eaglelocal/config.toml"
    config.parent.mkdir(parents=True)
    command = ["serve", "--no-tui", "--port", "0", "--ssl-key", str(HEAD), "--target", str(TARGET)]
    command = command[:4] + command[6:] if name != "SSL_CERT" else command
    if "\0" not in value and value.isascii():
        monkeypatch.setenv(f"EAGLELOCAL_{name}", value)
        assert "this is a bug" not in fail(command).message
        monkeypatch.delenv(f"EAGLELOCAL_{name}")
    if value.isascii():
        config.write_text(f'{name.lower()} = "{value}"'.replace("\0", "\\u0000"))
        assert "this is a bug" not in fail(command).message


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("~nosuchuser/k", "'~nosuchuser/k': there is no user 'nosuchuser'"),
        ("a\0b", "no file can be named 'a\\x00b': it contains a NUL character"),
        ("\ud800", "no file can be named '\\ud800': it is not Unicode"),
        ("x" * 300, "300 bytes, and the name of a file has at most 255"),
        ("x/" * 3000, "is too long: 6000 bytes"),
    ],
)
def test_an_impossible_path_is_refused(value: str, what: str) -> None:
    with pytest.raises(UsageError) as raised:
        expand_path(value)
    assert what in raised.value.message and len(raised.value.message) < 200


def test_a_possible_path_is_expanded(tmp_path: Path) -> None:
    (tmp_path / "~there").mkdir()
    paths = {"~/k": tmp_path / "k", "~there/k": Path("~there/k"), "\udcff": Path("\udcff"), "a/../b": Path("a/../b")}
    assert {text: expand_path(text) for text in paths} == paths
    assert [quote_path(text) for text in ("a b", "-x", "x\ny")] == ["'a b'", "./-x", r"$'x\012y'"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("text", ["", "a b'\"$x\\", "x\nevil: yes\t'\\n#.gguf", "\x1b[31mé\x85\u202e", "\udcff 7"])
def test_a_quoted_path_is_one_line_and_the_same_for_a_shell(text: str) -> None:
    word = quote_path(text)
    assert word.isprintable()
    assert subprocess.run(["bash", "-c", f"printf %s {word}"], stdout=subprocess.PIPE).stdout == os.fsencode(text)


LENIENT = {
    "core/user_paths.py": "it is the reader",
    "locations.py": "variables of other programs are read as those do",
    "settings.py": "asks whether a model's reference is a folder",
    "hub/draft_resolver.py": "asks whether a name with commas is a file",
    "client/running_servers.py": "compares references, which may name no file",
    "conversation/session.py": "of a file that is loaded",
    "conversation/pictures.py": "text of a question may name no file",
}


def test_paths_are_expanded_in_one_way() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in files.items() if ".expanduser(" in text} == set(LENIENT)
    assert not [name for name, text in files.items() if ").expanduser(" in text]  # pathlib's raises RuntimeError


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom a container makes up: no HOME, and no entry in the list of users."""

    def unknown(uid: int) -> object:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("OLLAMA_MODELS")


HOMELESS = ["ls", "show demo", "plan qwen3-8b", "heads", "doctor", "config show", "serve --target nosuch", "chat hi"]


@pytest.mark.parametrize("command", HOMELESS)
def test_a_home_that_is_not_known_is_named(command: str, homeless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{kind}_HOME")
    error = fail(command.split())
    assert error.message == "your home folder is not known" and "set HOME, or XDG_" in error.hint


@pytest.mark.parametrize("command", HOMELESS[:4])
def test_folders_that_are_named_need_no_home(command: str, homeless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["eaglelocal", *command.split()])
    assert main() == 0
