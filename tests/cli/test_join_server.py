"""`eaglelocal chat` with a running server: which server it joins, what it sends, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.loopback_server import OUR_MODELS, SPECULATION, Script, our_words, serving, words
from doubles.programs import Programs, output_of
from doubles.scripted_client import ScriptedClient, join_nothing, says, scripted_plan

from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.chat_connection import (
    choose_spec,
    find_api_key,
    find_engine_flags,
    find_ready_servers,
    join_running_server,
    wait_for_state,
)
from eaglelocal.cli.output import Output
from eaglelocal.cli.run import choose_source
from eaglelocal.client import running_servers
from eaglelocal.client.running_servers import RunningServer, describe_this_server, keep_announced
from eaglelocal.conversation.action_context import ActionContext
from eaglelocal.conversation.answer_stats import model_lines
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.session import ActiveModel, ModelLoader, RequestOutcome, Session
from eaglelocal.conversation.slash_commands import parse_command, run_command
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EagleLocalError, EngineError, RequestError, UsageError
from eaglelocal.settings import Settings

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0

Chat = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    """`eaglelocal chat ARGUMENTS`, where what this test announces is found."""
    for name in [name for name in os.environ if name.startswith(("EAGLELOCAL_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "eaglelocal", "chat", *arguments]
        return programs.start(command)

    with Programs() as programs:
        yield start


def ended(program: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    code, stdout, stderr = output_of(program, patience_s=PATIENCE_S)
    return code, stdout.decode(), stderr.decode()


@contextmanager
def announcing(url: str) -> Iterator[None]:
    port = int(url.rpartition(":")[2])
    with keep_announced(describe_this_server("127.0.0.1", port, target="demo", api_key="secret")):
        yield


def test_without_a_target_the_running_server_answers(chat: Chat) -> None:
    script = Script(our_words("one", " two"), models=OUR_MODELS)
    with serving(script) as url, announcing(url):
        code, stdout, stderr = ended(chat("hi", "--json", "--spec", "3", "--seed", "5", "--temperature", "0"))
    assert (code, stdout.count("\n")) == (0, 1)
    said = json.loads(stdout)
    assert (said["text"], said["target"], said["finish_reason"]) == ("one two", "demo", "stop")
    assert said["speculation"] == SPECULATION
    assert (said["timings"]["draft_s"], said["timings"]["verify_s"], said["timings"]["host_s"]) == (0.1, 0.3, 0.01)
    assert f"joined {url}: demo" in stderr
    assert "secret" not in stdout + stderr
    assert set(script.keys) == {"", "Bearer secret"}  # /health is asked without
    (body,) = script.bodies
    assert (body["spec"], body["seed"], body["temperature"]) == (3, 5, 0.0)
    assert "cache_prompt" not in body


def test_any_server_is_joined_by_its_address(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
    script = Script(words("hello"))
    with serving(script) as url:
        code, stdout, stderr = ended(chat("hi", "--url", url))
    assert (code, stdout) == (0, "hello\n")
    assert f"joined {url}: loopback-model" in stderr
    assert set(script.keys) == {"Bearer from the environment"}
    assert "spec" not in script.bodies[0]


def test_a_server_that_vanishes_is_one_line_and_exit_1(chat: Chat) -> None:
    with serving(Script(words("half", " an")[:3], is_cut=True)) as url:
        code, stdout, stderr = ended(chat("hi", "--url", url))
    assert (code, stdout) == (1, "half an\n")
    assert f"error: {url} ended the stream before the end of the answer" in stderr
    assert "Traceback" not in stderr
    code, stdout, stderr = ended(chat("hi", "--url", url))
    assert (code, stdout) == (1, "")
    assert f"error: cannot reach {url}" in stderr


def test_ctrl_c_hangs_up(chat: Chat) -> None:
    with serving(Script(words("half", " an")[:3], hangs=True)) as url:
        program = chat("hi", "--url", url)
        assert program.stdout is not None
        first = program.stdout.read(4)
        os.killpg(program.pid, signal.SIGINT)
        code, rest, stderr = ended(program)
    assert (code, first) == (130, b"half")
    assert rest.startswith(" an") or rest == "\n"
    assert "stopped" in stderr and "Traceback" not in stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--threads", "2"), 2, "--threads needs an engine of your own"),
        (("--spec", "3"), 2, "only eaglelocal servers support --spec"),
        (("--target", "other"), 1, "has no model 'other'"),
    ],
)
def test_what_a_server_cannot_obey_is_an_error(chat: Chat, arguments: tuple[str, ...], code: int, said: str) -> None:
    with serving(Script(words("x"))) as url:
        found, stdout, stderr = ended(chat("hi", "--url", url, *arguments))
    assert (found, stdout) == (code, "")
    assert f"error: {said}" in stderr or said in stderr
    assert "\nhint: " in stderr


# ---- the decision, without a program
class Lines:
    """What was said to the person."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def output(lines: Lines) -> Output:
    return Output(stdout=lines, stderr=lines, environ={})  # type: ignore[arg-type]


def settings(tmp_path: Path, environ: dict[str, str] | None = None, **flags: str) -> Settings:
    return Settings.load(flags, environ or {}, tmp_path / "none.toml")


def test_an_engine_of_its_own_when_nothing_runs_or_a_target_is_named(
    chat: Chat, tmp_path: Path, lines: Lines, output: Output
) -> None:
    assert join_running_server(settings(tmp_path), output) is None
    with serving(Script(models=OUR_MODELS)) as url, announcing(url):
        assert join_running_server(settings(tmp_path, target="demo@1b"), output) is None
        assert join_running_server(settings(tmp_path, target="dem"), output) is None
        assert join_running_server(settings(tmp_path, url="none", target="demo"), output) is None
        assert lines.text == ""
        assert join_running_server(settings(tmp_path, target="demo"), output) is None
        assert lines.text == f"{url} already runs demo: `eaglelocal chat --url {url}` saves memory\n"
        assert join_running_server(settings(tmp_path, threads="2"), output) is None
        assert f"not joining {url}: --threads needs an engine of its own" in lines.text
        joined = join_running_server(settings(tmp_path, {"EAGLELOCAL_THREADS": "2"}), output)
    assert joined is not None and joined.plan is None and joined.takes_spec


def test_run_joins_the_server_of_its_model_unless_a_flag_or_setting_rules_it_out(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Script(models=OUR_MODELS)) as url, announcing(url):
        assert choose_source("demo", ("hi", "--temperature=0", "-c")) == ("--url", url)
        for model, *words in (
            ("demo@1b", "hi"),
            ("demo", "--ctx", "512"),
            ("demo", "--kv-type=f16"),
            ("demo", "--rpc", "127.0.0.1:9"),
            ("demo", "--learn-gb", "1"),
            ("demo", "--url", ""),
        ):
            assert choose_source(model, words) == ("--target", model)
        monkeypatch.setenv("EAGLELOCAL_URL", "none")
        assert choose_source("demo", ()) == ("--target", "demo")


def test_a_target_of_the_config_file_is_joined_where_it_runs(
    chat: Chat, tmp_path: Path, lines: Lines, output: Output
) -> None:
    with serving(Script(models=OUR_MODELS)) as url, announcing(url):
        joined = join_running_server(settings(tmp_path, {"EAGLELOCAL_TARGET": "demo"}), output)
        assert joined is not None and lines.text == f"joined {url}: demo\n"
        assert join_running_server(settings(tmp_path, {"EAGLELOCAL_TARGET": "demo@1b"}), output) is None
        (tmp_path / "config.toml").write_text('target = "demo"\n')
        from_file = Settings.load({}, {}, tmp_path / "config.toml")
        assert join_running_server(from_file, output) is not None


def test_a_server_of_a_file_is_known_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").touch()
    monkeypatch.chdir(tmp_path)
    server = replace(describe_this_server("127.0.0.1", 1, target="./x.gguf"), target="X (x.gguf)")
    assert server.runs(str(tmp_path / "x.gguf")) and server.runs("x.gguf") and not server.runs("y.gguf")


def test_a_server_that_is_not_ready_is_named_and_not_joined(
    monkeypatch: pytest.MonkeyPatch, lines: Lines, output: Output
) -> None:
    named = enumerate(("loading", "ready", "no answer"), 1)
    states = {describe_this_server("127.0.0.1", port, target="demo"): state for port, state in named}
    monkeypatch.setattr(running_servers, "find_running_servers", lambda: list(states))
    monkeypatch.setattr(running_servers, "request_state", states.__getitem__)
    assert [server.port for server in find_ready_servers(output, patience_s=0)] == [2]
    assert lines.text == "not joining http://127.0.0.1:1: loading\nnot joining http://127.0.0.1:3: no answer\n"
    assert not list(find_ready_servers(output, target="other", patience_s=0))


def test_a_server_that_is_loading_is_waited_for(lines: Lines, output: Output) -> None:
    states = iter(["loading", "restarting", "ready", "loading"])
    assert wait_for_state(states.__next__, "waiting", output, patience_s=60) == "ready"
    assert lines.text == "waiting: loading\n"
    assert wait_for_state(lambda: "loading", "waiting", output, patience_s=0) == "loading"
    assert wait_for_state(lambda: "no answer", "waiting", output, patience_s=60) == "no answer"
    assert lines.text == "waiting: loading\n"


def test_a_server_that_makes_embeddings_is_not_joined(chat: Chat, tmp_path: Path, lines: Lines, output: Output) -> None:
    embeds = Script(models=OUR_MODELS, snapshot={"model": {"name": "demo", "task": "embedding", "embedding_size": 384}})
    with serving(embeds) as url, announcing(url):
        assert join_running_server(settings(tmp_path), output) is None
        assert lines.text == f"not joining {url}: it does not generate text\n"
        with pytest.raises(UsageError, match=f"{url} does not generate text") as caught:
            join_running_server(settings(tmp_path, url=url), output)
        assert "--url none" in caught.value.hint
        with serving(Script(models=OUR_MODELS)) as older, keep_announced(longer_there(older)):
            joined = join_running_server(settings(tmp_path), output)
    assert joined is not None and joined.info.library == older


def test_the_servers_that_are_not_joined_are_named(chat: Chat, tmp_path: Path, lines: Lines, output: Output) -> None:
    newer, older = Script(models=OUR_MODELS), Script(models=OUR_MODELS)
    with serving(newer) as url, announcing(url), serving(older) as other, keep_announced(longer_there(other)):
        assert join_running_server(settings(tmp_path), output) is not None
    assert lines.text == f"joined {url}: demo\n{other} runs demo: --url {other} joins it instead\n"


def longer_there(url: str) -> RunningServer:
    server = describe_this_server("127.0.0.1", int(url.rpartition(":")[2]), target="demo")
    return replace(server, started_at=server.started_at - 60)


def test_which_key_is_sent(chat: Chat) -> None:
    ours, openai = {"EAGLELOCAL_API_KEY": "ours"}, {"OPENAI_API_KEY": "theirs"}
    with keep_announced(describe_this_server("127.0.0.1", 8421, target="demo", api_key="announced")):
        assert find_api_key("http://127.0.0.1:8421", {}) == "announced"
        assert find_api_key("localhost:8421/v1", openai) == "announced"
        assert find_api_key("https://127.0.0.1:8421", {}) == ""
        assert find_api_key("http://127.0.0.1:8421", ours | openai) == "announced"
        assert find_api_key("http://127.0.0.1:8422", ours | openai) == "ours"
        assert find_api_key("http://127.0.0.1:8422", openai) == "theirs"
        assert find_api_key("http://127.0.0.1:8422", {}) == ""


def test_flags_of_an_engine_are_those_on_the_command_line(tmp_path: Path) -> None:
    assert find_engine_flags(settings(tmp_path, {"EAGLELOCAL_THREADS": "2"}, kv_type="q8_0")) == ["--kv-type"]
    assert find_engine_flags(settings(tmp_path, temperature="1", seed="3")) == []


def test_what_requests_say_about_drafting(tmp_path: Path, chat: Chat, output: Output) -> None:
    with serving(Script(models=OUR_MODELS)) as url:
        model = join_running_server(settings(tmp_path, url=url), output)
    assert isinstance(model, ActiveModel)
    assert choose_spec(settings(tmp_path), model) is None
    assert choose_spec(settings(tmp_path, {"EAGLELOCAL_SPEC": "2"}), model) is None
    assert choose_spec(settings(tmp_path, spec="off"), model) == OFF
    assert choose_spec(settings(tmp_path, spec="4"), model) == fixed_spec(4)
    other = replace(model, takes_spec=False)
    assert choose_spec(settings(tmp_path), other) is None
    with pytest.raises(UsageError, match="only eaglelocal servers"):
        choose_spec(settings(tmp_path, spec="4"), other)


# ---- talking with a server's model
def joined_session(
    tmp_path: Path, output: Output, *, takes_spec: bool
) -> tuple[ActionContext, ScriptedClient, ScriptedClient]:
    """At a server; a model of one's own can be loaded instead, unless it is called broken."""
    server, own = ScriptedClient((says("hi"),), n_ctx=0), ScriptedClient((says("hello"),), label="own")

    def load(plan: Plan) -> ActiveModel:
        if plan.target_label == "broken":
            raise EngineError("it cannot be loaded")
        return ActiveModel(own, plan, own.info)

    loader = ModelLoader(plan=lambda choice: scripted_plan(choice.target or "own"), load=load, join=join_nothing)
    model = ActiveModel(server, None, server.info, takes_spec=takes_spec)
    return ActionContext(Session(loader, model, SamplingParams()), output, tmp_path), server, own


def test_spec_is_for_the_requests_to_a_server_of_ours(tmp_path: Path, lines: Lines, output: Output) -> None:
    context, _, own = joined_session(tmp_path, output, takes_spec=True)
    for words_typed in ("/spec", "/spec 3", "/spec off"):
        run_command(context, parse_command(words_typed))
    assert lines.text.splitlines() == [
        "drafting: set by the server",
        "drafting, as requested from the server: 3 tokens ahead",
        "drafting off (your setting)",
    ]
    assert context.session.request(Conversation(), Turn("hi", ""), num_forgotten=0, params=SamplingParams()).spec == OFF
    assert context.session.model.plan is None and own.requests == []
    other, _, _ = joined_session(tmp_path, output, takes_spec=False)
    with pytest.raises(UsageError, match="does not take /spec"):
        run_command(other, parse_command("/spec 3"))


def test_a_model_of_ones_own_leaves_the_server_and_a_failure_stays(
    tmp_path: Path, lines: Lines, output: Output
) -> None:
    context, server, own = joined_session(tmp_path, output, takes_spec=True)
    with pytest.raises(EngineError):
        run_command(context, parse_command("/model broken"))
    assert (context.session.model.client, server.num_closed) == (server, 0)
    run_command(context, parse_command("/model own"))
    assert (context.session.model.client, server.num_closed, own.num_closed) == (own, 1, 0)


def test_the_model_of_a_server_is_reported(tmp_path: Path, lines: Lines, output: Output) -> None:
    context, server, _ = joined_session(tmp_path, output, takes_spec=True)
    run_command(context, parse_command("/model"))
    assert lines.text.splitlines() == ["target   scripted model", "draft    scripted head", "server   no llama.cpp"]
    unknown = replace(server.info, draft="none", draft_reason="not told by the server", n_ctx=512)
    assert model_lines(unknown, None)[1:3] == ["draft    not told by the server", "context  512 tokens"]


def test_nothing_is_forgotten_where_the_context_is_unknown(tmp_path: Path, output: Output) -> None:
    context, server, _ = joined_session(tmp_path, output, takes_spec=True)
    context.session.conversation.add(Turn("a long question " * 1000, "a long answer " * 1000))
    Asker(context.session, output).ask("next")
    assert [len(request.messages) for request in server.requests] == [3, 1]  # all of it, until the server minded


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (RequestError("too long", code="context_length_exceeded"), True),
        (RequestError("llama-server has no code for it"), True),
        (RequestError("no key", code="invalid_api_key"), False),
        (EngineError("busy"), False),
    ],
)
def test_only_what_may_be_too_long_costs_old_turns(error: EagleLocalError, is_refused: bool) -> None:
    assert RequestOutcome(error=error).refused is is_refused
