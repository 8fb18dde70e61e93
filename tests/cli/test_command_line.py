"""The command as people run it: stdout, stderr, exit codes, and what it imports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doubles.commands import run_command
from doubles.image_files import image_bytes
from doubles.programs import ending
from doubles.timeouts import PATIENCE_S, wait_until
from typer.main import get_command

from eaglelocal.cli.command_table import ALL, make_app
from eaglelocal.cli.flags import list_flag_variables
from eaglelocal.settings import FLAG_VARIABLES, PREFIX


def run(environ: dict[str, str], *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ=environ, stdin=stdin)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(environ: dict[str, str], flag: str) -> None:
    done = run(environ, flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("eaglelocal 0.")


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("-h",), ("help",), ("help", "plan"), ("chat", "--help"), ("config", "-h")]
)
def test_help_is_data_and_fits_eighty_columns(environ: dict[str, str], arguments: tuple[str, ...]) -> None:
    done = run(environ, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: eaglelocal" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_only_commands_that_exist_are_listed(environ: dict[str, str]) -> None:
    listed = run(environ).stdout
    listed = listed[listed.index("Chat and serve:") : listed.index("Options:")]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "]
    assert set(names) == set(ALL)
    for name in names:
        assert run(environ, name, "--help").returncode == 0


@pytest.mark.parametrize("name", ["chat", "serve", "plan", "bench", "top"])
def test_every_flag_stands_once_in_the_help(environ: dict[str, str], name: str) -> None:
    shown = run(environ, name, "--help").stdout
    flags = [
        word.strip(",") for line in shown.splitlines() for word in line.split()[:2] if line[:4] in ("  --", "  -h")
    ]
    flags = [flag for flag in flags if flag.startswith("--")]
    command = get_command(make_app([name])).commands[name]  # type: ignore[attr-defined]
    expected = [max(option.opts, key=len) for option in command.params if option.param_type_name == "option"]
    assert sorted(flags) == sorted([*expected, "--help"])
    assert "<str>" not in shown and "list[" not in shown


def test_many_flags_stand_in_groups(environ: dict[str, str]) -> None:
    titles = [line for line in run(environ, "chat", "--help").stdout.splitlines() if line[:1].isalpha()]
    assert titles[1:] == ["Arguments:", "Model:", "Memory and processor:", "Learning:", "Answers:", "Options:"]
    few = [line for line in run(environ, "ls", "--help").stdout.splitlines() if line[:1].isalpha()]
    assert few[1:] == ["Options:"]


@pytest.mark.parametrize(
    ("arguments", "complaint", "hint"),
    [
        (("caht",), "no command 'caht'", "eaglelocal chat"),
        (("zzz",), "no command 'zzz'", "eaglelocal --help"),
        (("ask", "me"), "no command 'ask'", "eaglelocal chat me"),
        (("run", "no-such-model", "hi"), "unknown target 'no-such-model'", "hint: eaglelocal"),
        (("run", "demo", "hi", "--spec", "99"), "99", "hint: eaglelocal run demo hi --spec auto\n"),
        (("list", "--json"), "no command 'list'", "eaglelocal ls --json"),
        (("shw", "demo"), "no command 'shw'", "eaglelocal show demo"),
        (("chat", "--tempreature", "0"), "no such option: --tempreature", "eaglelocal chat --help"),
        (("chat", "--seed"), "--seed", "--help"),
        (("chat", "hi", "there"), "unexpected extra argument", 'eaglelocal chat "QUESTION", or eaglelocal run MODEL'),
        (("config", "shwo"), "shwo", "eaglelocal config --help"),
        (("chat",), "there is no question: PROMPT and stdin are empty", "eaglelocal chat"),
        (("chat", "", "--json"), "there is no question", "eaglelocal chat"),
        (("chat", "hi", "--target", "no-such-model"), "no-such-model", "demo"),
        (("chat", "hi", "--spec", "99"), "99", "hint: eaglelocal chat hi --spec auto\n"),
        (("run", "smollm2:135m"), "unknown target 'smollm2:135m'", "hint: eaglelocal"),
        (("list",), "no command 'list'", "eaglelocal ls"),
        (("version",), "no command 'version'", "eaglelocal --version"),
        (("logs",), "no command 'logs'", "eaglelocal top"),
        (("cp", "a", "b"), "no command 'cp'", "eaglelocal --help"),
        (("server", "start", "-c", "4096"), "no command 'server'", "eaglelocal serve --ctx 4096"),
        (("server", "stop"), "no command 'server'", "eaglelocal stop"),
        (("pull", "qwen3:8b"), "unknown target 'qwen3:8b'", "hint: eaglelocal pull qwen3-8b"),
        (("chat", "hi", "--target", "qwen3:8b"), "unknown target 'qwen3:8b'", "eaglelocal chat hi --target qwen3-8b"),
        (("create", "mine", "-f", "Modelfile"), "no command 'create'", "eaglelocal chat --target ./FILE.gguf"),
        (("chat", "--model", "qwen3:8b"), "no such option: --model", "eaglelocal chat --target qwen3:8b"),
        (
            ("serve", "-m", "x.gguf", "-c4096", "-ngl", "99", "-np", "2"),
            "no such option: -m",
            "eaglelocal serve --target x.gguf --ctx 4096 --gpu-layers 99 --parallel 2",
        ),
        (("chat", "hi", "--no-tui"), "no such option: --no-tui", "hint: eaglelocal chat hi --plain\n"),
        (("serve", "-ngl", "99"), "no such option: -ngl", "eaglelocal serve --gpu-layers 99"),
    ],
)
def test_usage_errors(environ: dict[str, str], arguments: tuple[str, ...], complaint: str, hint: str) -> None:
    done = run(environ, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    first, _, rest = done.stderr.partition("\n")
    assert first.startswith("error: ")
    assert not first.endswith(".")
    assert complaint in first
    assert hint in rest
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--temperature", "--max-tokens", "--threads", "--ctx", "--kv-type", "--spec"])
def test_a_wrong_value_names_its_flag(environ: dict[str, str], flag: str) -> None:
    done = run(environ, "chat", "hi", flag, "nonsense")
    assert done.returncode == 2
    assert flag in done.stderr
    assert "nonsense" in done.stderr


def test_an_unknown_variable_is_an_error(environ: dict[str, str]) -> None:
    done = run({**environ, "EAGLELOCAL_TEMPRATURE": "0"}, "config", "show")
    assert done.returncode == 2
    assert "EAGLELOCAL_TEMPERATURE" in done.stderr


def test_every_flag_has_a_variable() -> None:
    found = {variable for variable, _ in list_flag_variables(get_command(make_app()))}
    assert found == {PREFIX + name for name in FLAG_VARIABLES}


def test_a_variable_stands_for_a_flag(environ: dict[str, str]) -> None:
    done = run({**environ, "EAGLELOCAL_JSON": "1"}, "config", "show")
    assert json.loads(done.stdout.splitlines()[-1])
    done = run({**environ, "EAGLELOCAL_GOAL": "nonsense"}, "plan")
    assert done.returncode == 2 and "--goal must be" in done.stderr


def test_bytes_that_are_not_text_are_refused(environ: dict[str, str]) -> None:
    done = run(environ, "chat", stdin=b"caf\xe9")
    assert done.returncode == 2
    assert "error: stdin is not UTF-8 text: byte 3 is 0xe9" in done.stderr
    assert "hint: iconv -f WINDOWS-1252 -t UTF-8 FILE | eaglelocal chat" in done.stderr
    done = run(environ, "chat", stdin=image_bytes())
    assert done.returncode == 2 and "hint: eaglelocal chat --image /dev/stdin" in done.stderr


def test_input_that_never_ends_is_refused(environ: dict[str, str]) -> None:
    done = run(environ, "chat", stdin=b"a line of text\n" * 600_000)
    assert done.returncode == 2
    assert "error: stdin is longer than 8 MB, more than a model can read" in done.stderr


@pytest.mark.parametrize(("closed", "report"), [(">&-", ""), ("2>&-", "eaglelocal 0."), ("<&- >&- 2>&-", "")])
def test_closed_streams_do_not_fail_a_command(environ: dict[str, str], closed: str, report: str) -> None:
    command = f"{sys.executable} -m eaglelocal --version {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environ, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(report)


def test_config_show_writes_values_as_the_file_has_them(environ: dict[str, str], tmp_path: Path) -> None:
    given = {
        "keys": {"pause": "p", "quit": "q,ctrl+q"}, "models": ["demo", "a,b"], "system": "say \"hm\"\nand no more",
        "alias": [], "spec": 4, "temperature": 0.0, "request_timeout": 60.5, "target": "-",
        "theme": "light", "split": "layer",
    }  # fmt: skip
    file = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    tables = {name: value for name, value in given.items() if isinstance(value, dict)}
    plain = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items() if name not in tables)
    file.write_text(plain + "[keys]\n" + "".join(f'{name} = "{keys}"\n' for name, keys in tables["keys"].items()))
    report = json.loads(run(environ, "config", "show", "--json").stdout)["settings"]
    assert {name: report[name]["value"] for name in given} == given
    text = run(environ, "config", "show").stdout
    assert run(environ, "config").stdout == text
    rows = [line.removesuffix(str(file)) for line in text.splitlines()]
    shown = {name: value.strip() for name, _, value in (row.partition(" ") for row in rows)}
    assert shown["keys"] == '{ pause = "p", quit = "q,ctrl+q" }'
    assert shown["models"] == '["demo", "a,b"]'
    assert (shown["alias"], shown["theme"], shown["temperature"], shown["spec"]) == ("-", "light", "0", "4")
    for name in ("keys", "models", "system", "target"):  # as a person may put them back
        assert tomllib.loads(f"{name} = {shown[name]}") == {name: given[name]}


def test_config_show_gives_value_and_origin(environ: dict[str, str]) -> None:
    folder = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("top_k = 7\n")
    done = run({**environ, "EAGLELOCAL_SEED": "3"}, "config", "show", "--json")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["top_k"]["value"], settings["top_k"]["origin"]) == (7, str(folder / "config.toml"))
    assert (settings["seed"]["value"], settings["seed"]["origin"]) == (3, "EAGLELOCAL_SEED")
    assert (settings["draft"]["value"], settings["draft"]["origin"]) == ("auto", "default")
    assert all(setting["help"] for setting in settings.values())
    shown = run({**environ, "EAGLELOCAL_SEED": "3"}, "config", "show").stdout
    assert "EAGLELOCAL_SEED" in shown and "()" not in shown
    assert len({line.find(" default") for line in shown.splitlines() if line.endswith(" default")}) == 1
    assert "Traceback" not in shown


def test_a_setting_is_written_and_read(environ: dict[str, str]) -> None:
    file = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("# mine\ntop_k = 7  # seven\n[keys]\npause = 'p'\n")
    written = {
        "top_k": "12",
        "temperature": "0.5",
        "models": "demo,x",
        "learn": "true",
        "theme": "light",
        "ctx": "auto",
    }
    for name, value in written.items():
        done = run(environ, "config", "set", name, value)
        assert (done.returncode, done.stdout) == (0, "") and str(file.name) in done.stderr
    text = file.read_text()
    assert "# mine\ntop_k = 12  # seven\n[keys]\npause = 'p'\n" in text
    read = tomllib.loads(text)
    assert read.pop("keys") == {"pause": "p"}
    assert read == {
        "top_k": 12,
        "temperature": 0.5,
        "models": ["demo", "x"],
        "learn": True,
        "theme": "light",
        "ctx": "auto",
    }
    assert [run(environ, "config", "get", name).stdout for name in ("top_k", "ctx", "models")] == [
        "12\n",
        "-\n",
        '["demo", "x"]\n',
    ]
    decided = run({**environ, "EAGLELOCAL_TOP_K": "3"}, "config", "set", "top_k", "4")
    assert "but EAGLELOCAL_TOP_K decides here" in decided.stderr
    for arguments, complaint in (
        (("set", "learn", "maybe"), "learn must be true or false, not 'maybe'"),
        (("set", "seed", "-1"), "seed must be a whole number from 0 to 4294967295, not '-1'"),
        (("set", "ctx", "--hlep"), "no such option: --hlep"),
        (("set", "--hlep", "ctx", "5"), "no such option: --hlep"),
        (("set", "tempreature", "0"), "hint: eaglelocal config set temperature 0"),
        (("set", "keys", "send=x"), "keys is set in a form that cannot be replaced\n\nhint: eaglelocal config edit"),
        (("get", "nothing"), "unknown setting nothing"),
    ):
        refused = run(environ, "config", *arguments)
        assert refused.returncode == 2 and complaint in refused.stderr


def test_a_setting_is_written_beside_a_faulty_one(environ: dict[str, str]) -> None:
    file = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("bogus = 1\n")
    done = run(environ, "config", "set", "top_k", "5")
    assert (done.returncode, done.stderr.count("error")) == (0, 0)
    assert tomllib.loads(file.read_text()) == {"bogus": 1, "top_k": 5}
    file.write_text("not TOML")
    assert "\nhint: eaglelocal config edit" in run(environ, "config", "get", "top_k").stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [("bogus = 1\n", "unknown setting bogus"), ("top_k = 'x'\n", "top_k must be"), ('models = ["./gone"]\n', "./gone")],
)
def test_what_only_reads_works_beside_faulty_settings(environ: dict[str, str], content: str, problem: str) -> None:
    file = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    models = run(environ, "ls", "--json")
    settings = run({**environ, "EAGLELOCAL_SEED": "5"}, "config", "show", "--json")
    assert (models.returncode, settings.returncode) == (0, 0)
    assert "models" in json.loads(models.stdout) and json.loads(settings.stdout)["settings"]["seed"]["value"] == 5
    assert models.stderr.startswith("warning: ") and problem in models.stderr
    assert ("warning: " in settings.stderr) is ("models" not in content)


def test_the_file_is_checked_after_it_was_edited(environ: dict[str, str]) -> None:
    for edit, code, words in (
        ("sh -c 'echo top_k = 3 > $0'", 0, "the settings are valid"),
        ("sh -c 'echo top_k = x > $0'", 2, "not valid TOML"),
        ("false", 1, "the editor failed"),
        ("no-such-editor", 2, "editor not found"),
    ):
        done = run({**environ, "EDITOR": edit, "VISUAL": ""}, "config", "edit")
        assert done.returncode == code and words in done.stderr


def test_probe_for_people_and_programs(environ: dict[str, str]) -> None:
    machine = json.loads(run(environ, "probe", "--json").stdout)
    assert {"gpus", "cpu", "memory", "llama_cpp"} <= set(machine)
    people = run(environ, "probe")
    assert people.returncode == 0
    assert str(machine["llama_cpp"]["version"]) in people.stdout
    assert max(len(line) for line in people.stdout.splitlines()) <= 80


def piped(environ: dict[str, str], command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, env=environ, timeout=120
    )


def test_a_closed_pipe_is_not_an_error(environ: dict[str, str]) -> None:
    done = piped(environ, f"{sys.executable} -m eaglelocal config show | head -c 1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout in ("t0\n", "t0")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_full_disk_is_an_error_not_a_traceback(environ: dict[str, str]) -> None:
    done = piped(environ, f"{sys.executable} -m eaglelocal config show > /dev/full")
    assert done.returncode == 1
    assert "error: cannot write to stdout: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


BUG = (
    "import sys; from eaglelocal.cli import main as program\n"
    "def broken(arguments): raise ZeroDivisionError('three / 0')\n"
    "program.run = broken\n"
    "sys.exit(program.main())"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_killed_process_leaves_no_half_written_model(environ: dict[str, str], number: signal.Signals) -> None:
    """Nor does a terminal that is closed: gigabytes that would never be found."""
    command = [sys.executable, "-m", "eaglelocal", "chat", "--target", "demo@1b:bf16", "hi"]
    folder = Path(environ["XDG_CACHE_HOME"]) / "eaglelocal" / "generated"
    quiet = subprocess.DEVNULL
    with ending(subprocess.Popen(command, env=environ, stderr=quiet, stdin=quiet)) as process:
        wait_until(lambda: bool(list(folder.glob("*.partial"))), "a file that is being written")
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
    assert [path.name for path in folder.iterdir()] == [".inflate.lock"]


def test_an_unexpected_failure_says_that_it_is_a_bug(environ: dict[str, str]) -> None:
    command = [sys.executable, "-c", BUG]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 1
    assert "error: this is a bug: ZeroDivisionError: three / 0" in done.stderr
    assert "EAGLELOCAL_TRACEBACK=1" in done.stderr
    assert "Traceback" not in done.stderr
    environ["EAGLELOCAL_TRACEBACK"] = "1"
    assert "Traceback" in subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60).stderr


@pytest.mark.parametrize("arguments", [("--help",), ("config", "--help"), ("trust", "--help")])
def test_the_summaries_of_commands_fit_80_columns(environ: dict[str, str], arguments: tuple[str, ...]) -> None:
    shown = run({**environ, "COLUMNS": "80"}, *arguments).stdout
    assert not [line for line in shown.splitlines()[1:] if line.endswith("...") or "\\b" in line]


def test_a_setting_is_removed(environ: dict[str, str]) -> None:
    file = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "config.toml"
    assert run(environ, "config", "unset", "ctx").returncode == 0 and not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text("# mine\nctx = 512  # short\ntop_k = 7\n")
    done = run({**environ, "EAGLELOCAL_CTX": "256"}, "config", "unset", "ctx")
    assert "but EAGLELOCAL_CTX decides here" in done.stderr
    assert file.read_text() == "# mine\ntop_k = 7\n"
    assert "--ctx comes from" not in run(environ, "plan", "demo").stderr
    file.write_text("split = '1,1,1,1,1'\n")
    done = run(environ, "plan", "demo")
    assert f"--split comes from {file}" in done.stderr and "hint: eaglelocal config unset split" in done.stderr
