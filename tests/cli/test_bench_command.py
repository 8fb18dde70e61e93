"""`eaglelocal bench` with the real engine on models with random weights, and its report when it is stopped."""

from __future__ import annotations

import getpass
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doubles.loopback_server import Script, serving, words
from doubles.programs import Programs, output_of
from doubles.random_models import TargetShape, write_agreeing_head, write_target
from doubles.scripted_client import ScriptedClient
from doubles.timed_client import TimedAnswer, TimedClient

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.measure import order_prompts
from eaglelocal.bench.prompt_run import Side
from eaglelocal.bench.text_identity import TextComparer
from eaglelocal.cli.bench import (
    DEFAULT_PAIRS,
    MIN_ANSWER,
    BenchFlags,
    ChosenPrompts,
    choose_prompts,
    format_time_left,
    limit_time,
    measure,
    read_key,
)
from eaglelocal.cli.bench_report import BenchOptions, BenchSubject, show_result
from eaglelocal.cli.output import Output
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest
from eaglelocal.core.sampling import GREEDY
from eaglelocal.errors import EngineError, UsageError

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
COLUMNS = 79

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A target, a head that often agrees with it, and prompts of two kinds."""
    folder = tmp_path_factory.mktemp("models")
    shape = TargetShape(layer_gain=0.05)
    target = write_target(folder / "target.gguf", shape)
    prompts = [{"tokens": [5 + n, 9, 7 + n, 11], "category": kind} for kind in ("odd", "even") for n in range(2)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    head = write_agreeing_head(folder / "head.gguf", target, shape)
    return str(target), str(head), str(folder / "prompts.jsonl")


@pytest.fixture
def bench(files: tuple[str, str, str], tmp_path: Path) -> Iterator[Start]:
    target, head, prompts = files
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")}
    environ = {**plain, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    environ |= {"EAGLELOCAL_THREADS": "1", "EAGLELOCAL_CTX": "128"}

    def start(*arguments: str, draft: str = head) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "eaglelocal", "bench", "--target", target, "--draft", draft]
        return programs.start([*command, "--prompts", prompts, "--max-tokens", "16", *arguments], env=environ)

    with Programs() as programs:
        yield start


def ended(program: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code, stdout, stderr = output_of(program, patience_s=PATIENCE_S)
    return code, stdout.decode(), stderr.decode()


def test_a_table_a_chart_and_the_object_last(bench: Start, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    page = tmp_path / "bench.md"
    wanted = ("--spec", "auto,2", "--concurrency", "1,2", "--svg", str(chart), "--report", str(page), "--json")
    code, stdout, stderr = ended(bench(*wanted))
    assert (code, "Traceback" in stderr) == (0, False)
    check_page(page, tmp_path)
    *table, last = stdout.splitlines()
    assert max(map(len, table)) <= COLUMNS
    report = json.loads(last)
    places = [(run["category"], run["concurrency"], run["spec"]) for run in report["runs"]]
    assert places == [(*place, spec) for place in (("odd", 1), ("even", 1), ("mixed", 2)) for spec in ("auto", "2")]
    assert [run["different"] for run in report["runs"]] == [0] * 6
    assert (report["complete"], report["spec"], report["threads"], report["slots"]) == (True, "auto", 1, 2)
    assert [run["reused_prompts"] for run in report["runs"]] == [0] * 6
    assert {(one["category"], one["concurrency"]) for one in report["comparisons"]} >= {("all", 1), ("mixed", 2)}
    assert ElementTree.fromstring(chart.read_text()).tag.endswith("svg")


def check_page(page: Path, folder: Path) -> None:
    """The page has every mode at both loads, and nothing personal: no folder, no name, no host."""
    text, facts = page.read_text(), json.loads(page.with_suffix(".json").read_text())
    modes = [(mode["mode"], mode["concurrency"]) for mode in facts["modes"]]
    assert modes == [("auto", 1), ("2", 1), ("auto", 2), ("2", 2)]
    assert facts["best_length"] == "2" and all(mode["plain_tok_s"] > 0 for mode in facts["modes"])
    assert all(len(mode["by_depth"]) <= 2 for mode in facts["modes"] if mode["mode"] == "2")
    assert "| main memory |" in text and f"| {facts['machine']['cpu']} |" in text
    assert facts["model"]["num_slots"] == 2 and facts["model"]["weights_bytes"] > 0
    for personal in (str(folder), str(Path.home()), getpass.getuser(), socket.gethostname()):
        assert personal not in text and personal not in json.dumps(facts)


def test_gains_by_rate_of_the_embedded_model(bench: Start, tmp_path: Path) -> None:
    """On the embedded model in its native size."""
    chart, page = tmp_path / "chart.svg", tmp_path / "bench.md"
    wanted = ("--target", "demo@native", "--rate", "4,100", "--spec", "2", "--pairs", "2", "--warm-up", "1")
    wanted = (*wanted, "--parallel", "2", "--ignore-eos", "--svg", str(chart), "--report", str(page), "--json")
    code, stdout, stderr = ended(bench(*wanted, draft="auto"))
    assert (code, "Traceback" in stderr) == (0, False)
    *text, last = stdout.splitlines()
    assert max(map(len, text)) <= COLUMNS
    assert [line.partition(":")[0] for line in text[-2:]] == ["best at 4/s", "best at 100/s"]
    report = json.loads(last)
    assert [(one["rate"], one["spec"]) for one in report["rates"]] == [
        (rate, spec) for rate in (4, 100) for spec in ("plain", "2")
    ]
    assert (report["slots"], report["complete"], report["best"][0]["rate"]) == (2, True, 4)
    for one in report["rates"]:
        assert (one["num_requests"], one["num_rounds"]) == (16, 4)
        assert one["is_saturated"] == (one["mean_s"] is None)
        assert one["is_saturated"] or one["tok_s"] > 0
    assert ElementTree.fromstring(chart.read_text()).tag.endswith("svg")
    assert "    best at 4/s" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["rates"] == report["rates"]


def test_drawn_texts_are_the_same_under_one_seed(bench: Start) -> None:
    code, stdout, _ = ended(bench("--spec", "3", "--temperature", "0.8", "--category", "odd", "--json"))
    report = json.loads(stdout.splitlines()[-1])
    assert code == 0
    assert [run["identical"] for run in report["runs"]] == [True]
    assert report["temperature"] == 0.8


def test_the_beginning_of_answers_need_not_count(bench: Start) -> None:
    flags = ("--spec", "2", "--category", "odd", "--max-tokens", "40", "--skip", "20", "--ignore-eos", "--json")
    code, stdout, _ = ended(bench(*flags))
    *table, last = stdout.splitlines()
    assert code == 0
    assert max(map(len, table)) <= COLUMNS
    assert "first 20 not counted" in stdout
    report = json.loads(last)
    assert (report["skipped_tokens"], report["ignore_eos"]) == (20, True)
    assert "to 40 tokens, first 20 not counted" in stdout
    assert [run["speedup"] > 0 for run in report["runs"]] == [True]


def test_prompts_that_do_not_fit_the_context_are_left_out(bench: Start, tmp_path: Path) -> None:
    lines = [{"tokens": [5] * 127}, {"tokens": [5] * 128}, {"tokens": [5, 9, 7]}, {"tokens": [5] * 300}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines[:3])))
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, lines[1::2])))
    flags = ("--spec", "2", "--warm-up", "0", "--json", "--prompts")
    code, stdout, stderr = ended(bench(*flags, str(tmp_path / "mine.jsonl")))
    report = json.loads(stdout.splitlines()[-1])
    assert (code, report["too_long"], report["complete"]) == (0, 1, False)
    assert (
        "left out: 1 comparison, for this model's maximum context length is 128 tokens" in stderr
        and "enough" not in stderr
    )
    code, stdout, stderr = ended(bench(*flags, str(tmp_path / "long.jsonl")))
    assert (code, stdout) == (1, "") and "maximum context length is 128" in stderr


def test_a_server_is_asked_the_same_prompts(bench: Start) -> None:
    script = Script(words(*("word " * 12).split()), pause_s=0.001)
    with serving(script) as url:
        code, stdout, _ = ended(bench("--spec", "2", "--against", url, "--warm-up", "1", "--pairs", "1", "--json"))
    assert code == 0
    report = json.loads(stdout.splitlines()[-1])
    assert [run["spec"] for run in report["server_runs"]] == ["server", "server"]
    assert [one["against"] for one in report["comparisons"] if one["against"] == "server"]
    assert [body["prompt"] for body in script.bodies] == [[5, 9, 7, 11]] * 3
    assert script.paths.count("/v1/completions") == 3
    assert (report["server"], report["server_model"]) == (url, "loopback-model")
    assert f"server   {url}: loopback-model" in stdout


def test_one_of_a_servers_models_may_be_named(bench: Start) -> None:
    script = Script(words(*("word " * 12).split()), models={"data": [{"id": "first"}, {"id": "second"}]})
    flags = ("--spec", "2", "--category", "odd", "--warm-up", "0", "--pairs", "1", "--json")
    with serving(script) as url:
        code, stdout, _ = ended(bench(*flags, "--against", url, "--against-model", "second"))
        refused, _, stderr = ended(bench(*flags, "--against", url, "--against-model", "third"))
    assert code == 0 and json.loads(stdout.splitlines()[-1])["server_model"] == "second"
    assert {body["model"] for body in script.bodies} == {"second"}
    assert refused == 1 and "has no model 'third'" in stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--spec", "off"), 2, "names plain decoding"),
        (("--spec", "fast"), 2, "--spec must be"),
        (("--concurrency", "0"), 2, "--concurrency must be"),
        (("--rate", "0"), 2, "--rate must be up to 7 different"),
        (("--rate", "1,1"), 2, "--rate must be up to 7 different"),
        (("--rate", "1", "--concurrency", "2"), 2, "--rate and --concurrency exclude each other"),
        (("--rate", "1", "--skip", "9"), 2, "--rate and --skip exclude each other"),
        (("--category", "poetry"), 2, "no category 'poetry'"),
        (("--prompts", "nowhere.txt"), 2, "cannot read the prompts"),
        (("--kv-type", "f8"), 2, "--kv-type must be"),
        (("--svg", "/nowhere/at/all.svg"), 2, "does not exist"),
        (("--report", "/nowhere/at/all.md"), 2, "does not exist"),
        (("--report", "page.json"), 2, "not the name of a Markdown file"),
        (("--max-tokens", "3"), 2, str(MIN_ANSWER)),
        (("--max-tokens", "64", "--skip", "49"), 2, "leaves too little"),
        (("--against", "http://127.0.0.1:1"), 1, "cannot reach"),
        (("--against", "ftp://x"), 2, "is not the address"),
        (("--against-model", "other"), 2, "needs a server"),
        (("--draft", "none"), 2, "nothing to compare"),
    ],
)
def test_a_measurement_that_is_impossible_is_refused_at_once(
    bench: Start, arguments: tuple[str, ...], code: int, said: str
) -> None:
    got, stdout, stderr = ended(bench(*arguments))
    assert (got, stdout) == (code, "")
    assert said in stderr
    assert "loading" not in stderr


def test_ctrl_c_ends_with_130_and_no_traceback(bench: Start) -> None:
    program = bench("--repeats", "100000")
    assert program.stderr is not None
    assert any(b"measuring" in line for line in program.stderr)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does: the whole group
    code, _, stderr = ended(program)
    assert code == 130
    assert "stopped after" in stderr
    assert "Traceback" not in stderr


# ---- without a model
class Written:
    """An Output whose streams can be read."""

    def __init__(self) -> None:
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self.output = Output(stdout=self.stdout, stderr=self.stderr, environ={})


def stopped_after(
    num_asks: int, how: BaseException, *, limit_s: float = math.inf
) -> tuple[Written, BaseException | None]:
    """A run that ends in the middle: what it says, and the error that it leaves."""
    asked: list[str] = []

    def report(request: ChatRequest) -> TimedAnswer:
        if len(asked) == num_asks:
            raise how
        asked.append(request.id)
        return TimedAnswer(range(21), decode_s=1.0 if request.spec == OFF else 0.5)

    client = TimedClient(report)
    sides = [Side("plain", client, OFF), Side("auto", client, AUTO_SPEC)]
    prompts = {"x": [BenchPrompt("x", tokens=(n,)) for n in range(4)]}
    written, options = Written(), BenchOptions((AUTO_SPEC,), (1,), GREEDY, limit_s)
    planned = order_prompts(prompts, [1], repeats=1, warm_up=())
    comparer = TextComparer(sides[0], bound=0.05)
    result = measure(sides, planned, options, comparer=comparer, output=written.output)
    subject = BenchSubject(ScriptedClient(()).info, options, None, "BF16", 0.05)
    show_result(result, subject, written.output, as_json=True)
    return written, result.error


def test_an_interrupt_reports_what_there_is() -> None:
    written, error = stopped_after(5, KeyboardInterrupt())
    assert getattr(error, "exit_code", None) == 130
    assert "stopped after 2 of 4 comparisons" in written.stderr.getvalue()
    report = json.loads(written.stdout.getvalue().splitlines()[-1])
    assert (report["complete"], report["runs"][0]["pairs"]) == (False, 2)
    assert report["geomean_speedup"] == pytest.approx(2.0)


def test_a_failure_reports_what_there_is() -> None:
    written, error = stopped_after(4, EngineError("the engine process crashed"))
    assert isinstance(error, EngineError)
    assert "2.00x" in written.stdout.getvalue()


def test_an_interrupt_before_the_first_pair_has_nothing_to_report() -> None:
    written, error = stopped_after(1, KeyboardInterrupt())
    assert getattr(error, "exit_code", None) == 130
    assert written.stdout.getvalue() == ""
    assert "stopped after 0 of 4" in written.stderr.getvalue()


def test_when_the_time_is_over_two_prompts_of_each_kind_are_measured_all_the_same() -> None:
    written, error = stopped_after(99, KeyboardInterrupt(), limit_s=0.0)
    assert error is None
    assert "time limit after 2 of 4 comparisons" in written.stderr.getvalue()
    report = json.loads(written.stdout.getvalue().splitlines()[-1])
    assert (report["complete"], report["runs"][0]["pairs"]) == (False, 2)


def test_what_no_time_limit_leaves_out() -> None:
    is_needed = limit_time(0.0)
    prompts = {"x": [BenchPrompt("x", tokens=(n,)) for n in range(4)]}
    planned = order_prompts(prompts, [1, 2], repeats=1, warm_up=prompts["x"])
    kept = [(task.concurrency, task.unit) for task in planned if task.is_counted and is_needed(task)]
    assert kept == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(is_needed(task) for task in planned if not task.is_counted)
    assert all(map(limit_time(math.inf), planned))


def test_prompts_of_the_warm_up_are_not_measured() -> None:
    asked = choose_prompts(BenchFlags(category="math,chat", warm_up=3))
    measured = [prompt for kind in asked.prompts.values() for prompt in kind]
    assert len(measured) == 2 * DEFAULT_PAIRS
    assert len(asked.warm_up) == 3
    assert not set(asked.warm_up) & set(measured)


def test_all_of_a_file_is_asked_unless_less_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("a\nb\nc\nd\ne\n")
    assert len(choose_prompts(BenchFlags(prompts=file)).prompts["prompts"]) == 5
    assert len(choose_prompts(BenchFlags(prompts=file, pairs=2)).prompts["prompts"]) == 2


def test_repeats_are_planned() -> None:
    asked = ChosenPrompts({"x": [BenchPrompt("x", tokens=(1,))]}, [])
    assert len(order_prompts(asked.prompts, (1,), repeats=3, warm_up=asked.warm_up)) == 3


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "0 s"), (99.0, "99 s"), (180.0, "3 min")])
def test_durations(seconds: float, said: str) -> None:
    assert format_time_left(seconds) == said


@pytest.mark.parametrize("text", ["secret\n", "default: secret", "# mine\n\nme: secret\nyou: other\n", "\ufeffsecret"])
def test_a_key_is_read_as_serve_writes_it(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    assert read_key(file) == "secret"


@pytest.mark.parametrize("text", ["", "# nothing", "two words", "schl\u00fcssel"])
def test_a_file_without_a_key_is_reported_and_never_quoted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="there is no key") as raised:
        read_key(file)
    assert not text or text not in raised.value.message
