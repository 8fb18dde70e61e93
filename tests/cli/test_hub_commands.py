"""`pull`, `ls`, `show` and `rm` as a person runs them, against a hub on loopback."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from doubles.commands import run_command
from doubles.empty_home import home_variables
from doubles.hub_models import model_bytes
from doubles.loopback_hub import HubFile, HubRepo, LoopbackHub, guide_repo, serving
from doubles.mtp_models import PARTS as MTP_PARTS
from doubles.mtp_models import write_assistant, write_gemma, write_mtp
from doubles.programs import ending
from doubles.projectors import projector_bytes
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.hub.heads.version_records import VersionList, write_versions
from eaglelocal.hub.hub_cache import list_models
from eaglelocal.learning.kept_answers import KeptAnswers, make_answer, to_bytes
from eaglelocal.learning.learning_round import LearningRound, LearningState, write_state

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
GUIDE, HEAD = "someone/guide-GGUF", "someone/guide-EAGLE3-GGUF"
GUIDE_BYTES = (ROOT / "profiles" / "demo" / "guide-target.gguf").stat().st_size


@dataclass
class Person:
    """Somebody with an empty home, no token, and a hub."""

    home: Path
    hub: LoopbackHub

    @property
    def cache(self) -> Path:
        return self.home / "hub"

    @property
    def environ(self) -> dict[str, str]:
        ours = ("EAGLELOCAL_", "XDG_", "HF_", "HUGGING")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        homes = home_variables(self.home)
        hub = {"HF_ENDPOINT": self.hub.url, "HF_HUB_CACHE": str(self.cache), "HF_HOME": str(self.home / "hf")}
        return {**plain, **homes, **hub, "PYTHONPATH": str(ROOT), "TERM": "xterm"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "eaglelocal", *arguments]

    def runs(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command: in this process, or in one that finds more variables when it imports the hub's client."""
        if not more:
            return run_command(*arguments, environ=self.environ)
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**self.environ, **more},
            timeout=300,
        )

    def starts(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(*arguments), stdout=pipe, stderr=pipe, text=True, env=self.environ)

    def sees(self, *arguments: str) -> dict[str, Any]:
        done = self.runs(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    @property
    def models(self) -> list[str]:
        """What `ls` lists of the hub, without a process for it."""
        return [model.reference for model in list_models(self.cache)]

    @property
    def partial_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.cache.glob("*/blobs/*.incomplete"))


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    with serving(LoopbackHub(guide_repo(ROOT / "profiles"))) as hub:
        yield Person(tmp_path, hub)


@dataclass
class Terminal:
    """A command on a terminal of 80 columns; what it says, and what is typed."""

    master: int
    process: subprocess.Popen[bytes]
    said: str = ""

    @classmethod
    def of(cls, person: Person, *arguments: str) -> Terminal:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            person.command(*arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=person.environ,
            start_new_session=True,
        )
        os.close(slave)
        return cls(master, process)

    def wait_for(self, words: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while words not in self.said:
            assert time.monotonic() < end_s and self._read(), f"never said {words!r}: {self.said!r}"

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self.master)
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        """Whether there was more to read before the process ended."""
        readable, _, _ = select.select([self.master], [], [], PATIENCE_S)
        try:
            chunk = os.read(self.master, 4096) if readable else b""
        except OSError:  # Linux's way to say that the other end is closed
            return False
        self.said += chunk.decode(errors="replace")
        return chunk != b""


def test_an_embedded_model_is_shown_before_it_is_written(person: Person) -> None:
    done = person.runs("show", "demo@9b:q8_0", "--json")
    report = json.loads(done.stdout)
    assert (report["reference"], report["quant"], report["on_disk"]) == ("demo@9b:q8_0", "Q8_0", False)
    assert report["size_bytes"] == pytest.approx(9e9 * 34 / 32, rel=0.02)
    assert not Path(report["path"]).exists()
    assert "not written yet" in person.runs("show", "demo@9b:q8_0").stdout


def test_a_model_is_pulled_listed_shown_and_removed(person: Person) -> None:
    done = person.runs("pull", GUIDE, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"eaglelocal chat --target {GUIDE}:BF16"]
    assert "11.9 MB  guide-BF16.gguf" in done.stderr and "licence mit" in done.stderr
    assert "checked" in done.stderr and "\x1b" not in done.stderr and "\r" not in done.stderr
    listed = person.sees("ls")["models"]
    assert [model["reference"] for model in listed if model["origin"] == "hub"] == [f"{GUIDE}:BF16"] == person.models
    shown = person.sees("show", GUIDE)
    assert (shown["architecture"], shown["context"], shown["quant"]) == ("llama", 2048, "BF16")
    assert Path(str(shown["path"])).stat().st_size == shown["size_bytes"] == GUIDE_BYTES
    lock = Path(person.environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "pairs.lock"
    assert json.loads(lock.read_text()) == {GUIDE: Path(str(shown["path"])).parent.name}
    again = person.runs("pull", GUIDE, "--yes")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "all files are on disk" in again.stderr and "fetching" not in again.stderr
    done = person.runs("rm", f"{GUIDE}:BF16", "--yes")
    assert done.returncode == 0 and "freed 11.9 MB" in done.stderr
    assert person.models == []


def seeing_repo(person: Person) -> str:
    """A repository of a model in two quantizations, with a projector in three types."""
    files = {f"tiny-{quant}.gguf": HubFile(model_bytes(rows=rows)) for quant, rows in (("Q4_K_M", 32), ("Q8_0", 48))}
    for number, kind in enumerate(("BF16", "F16", "F32")):
        files[f"mmproj-{kind}.gguf"] = HubFile(projector_bytes(more={"block_count": number}))
    person.hub.repos["someone/tiny-VL-GGUF"] = HubRepo(files)
    return "someone/tiny-VL-GGUF"


def test_what_makes_images_readable_comes_and_goes_with_the_model(person: Person) -> None:
    repo = seeing_repo(person)
    done = person.runs("pull", repo, "--yes")
    assert done.returncode == 0, done.stderr
    assert "tiny-Q4_K_M.gguf" in done.stderr and "mmproj-BF16" not in done.stderr
    assert "checked: mmproj-F16.gguf, its projector for images" in done.stderr
    [listed] = [model for model in person.sees("ls")["models"] if model["origin"] == "hub"]
    assert Path(listed["projector"]).name == "mmproj-F16.gguf"
    assert "llama, images" in person.runs("ls").stdout
    shown = person.sees("show", repo)
    assert shown["projector"] == listed["projector"] and shown["images_bytes"] > 0
    assert "read with mmproj-F16.gguf" in person.runs("show", repo).stdout
    person.runs("pull", f"{repo}:Q8_0", "--yes")
    person.runs("rm", f"{repo}:Q4_K_M", "--yes")
    assert list(person.cache.glob("*/snapshots/*/mmproj-F16.gguf"))  # the other one reads with it
    person.runs("rm", repo, "--yes")
    assert not list(person.cache.glob("models--*"))


@pytest.mark.parametrize(
    ("mmproj", "fetched", "words"),
    [
        ("none", [], "checked"),
        ("mmproj-f32.gguf", ["mmproj-F32.gguf"], "mmproj-F32.gguf, its projector"),
        ("other.gguf", [], "has no projector other.gguf"),
    ],
)
def test_which_projector_is_fetched(person: Person, mmproj: str, fetched: list[str], words: str) -> None:
    done = person.runs("pull", seeing_repo(person), "--mmproj", mmproj, "--yes")
    assert words in done.stderr
    assert [path.name for path in person.cache.glob("*/snapshots/*/mmproj*")] == fetched


def test_nothing_is_fetched_without_being_asked_for(person: Person) -> None:
    done = person.runs("pull", GUIDE)
    assert done.returncode == 2 and "--yes" in done.stderr
    assert not person.hub.asked_of_storage() and not list(person.home.rglob("*.gguf"))
    for arguments in (("chat", "--target", GUIDE, "hello"), ("bench", "--target", GUIDE), ("show", GUIDE)):
        person.hub.asked.clear()
        done = person.runs(*arguments)
        assert done.returncode == 1
        assert f"{GUIDE} is not on disk" in done.stderr and f"eaglelocal pull {GUIDE}" in done.stderr
        assert person.hub.asked == []


def test_run_downloads_what_is_missing_and_chats(person: Person) -> None:
    refused = person.runs("run", GUIDE, "Once", "--max-tokens", "3")
    assert refused.returncode == 2 and "--yes" in refused.stderr and not person.models
    for is_downloaded in (True, False):
        done = person.runs("run", GUIDE, "Once", "--max-tokens", "3", "--yes")
        assert done.returncode == 0 and done.stdout.strip()
        assert person.models == [f"{GUIDE}:BF16"] and ("download" in done.stderr) is is_downloaded


def test_a_terminal_is_asked_once(person: Person) -> None:
    terminal = Terminal.of(person, "pull", GUIDE)
    terminal.wait_for("fetch 11.9 MB? [Y/n]")
    assert not person.hub.asked_of_storage()
    terminal.type("\n")
    assert terminal.end() == 0
    assert terminal.said.count("[Y/n]") == 1 and "100%  fetching 11.9 MB" in terminal.said
    assert person.models == [f"{GUIDE}:BF16"]


@pytest.mark.parametrize("answer", ["n\n", "no\n", "what\n", "\x04"])
def test_answering_no_downloads_nothing(person: Person, answer: str) -> None:
    terminal = Terminal.of(person, "pull", GUIDE)
    terminal.wait_for("[Y/n]")
    terminal.type(answer)
    assert terminal.end() == 130
    assert not person.hub.asked_of_storage()


def test_removal_asks_and_an_empty_answer_means_no(person: Person) -> None:
    person.runs("pull", GUIDE, "--yes")
    assert person.runs("rm", GUIDE).returncode == 2
    terminal = Terminal.of(person, "rm", GUIDE)
    terminal.wait_for("free 11.9 MB? [y/N]")
    terminal.type("\n")
    assert terminal.end() == 130
    assert person.models == [f"{GUIDE}:BF16"]
    terminal = Terminal.of(person, "rm", GUIDE)
    terminal.wait_for("[y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert person.models == []


def interrupted(person: Person, number: int) -> tuple[int, str]:
    """Stop a slow pull by a signal when a part of it is there. (exit code, stderr)"""
    person.hub.faults.slow_s = 0.02
    with ending(person.starts("pull", GUIDE, "--yes")) as process:
        wait_until(lambda: person.partial_bytes > 1_000_000, "a part of the file is there")
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
    person.hub.faults.slow_s = 0.0
    return process.returncode, said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_what_came_before_it_was_stopped_is_not_fetched_again(person: Person, number: int, code: int) -> None:
    ended, said = interrupted(person, number)
    assert ended == code and "Traceback" not in said
    assert ("resumes the download" in said) == (number == signal.SIGINT)
    assert person.models == [] and person.sees("ls")["unfinished"]
    kept, num_asked = person.partial_bytes, len(person.hub.asked_of_storage())
    assert kept > 900_000
    done = person.runs("pull", GUIDE, "--yes")
    assert done.returncode == 0, done.stderr
    assert {asked.range for asked in person.hub.asked_of_storage()[num_asked:]} == {f"bytes={kept}-{GUIDE_BYTES - 1}"}
    assert person.models == [f"{GUIDE}:BF16"] and person.sees("ls")["unfinished"] == []


def test_an_unfinished_download_can_be_removed(person: Person) -> None:
    interrupted(person, signal.SIGKILL)
    done = person.runs("chat", "--target", GUIDE, "hello")
    assert done.returncode == 1 and "not on disk whole" in done.stderr
    assert person.runs("rm", GUIDE, "--yes").returncode == 0
    assert person.partial_bytes == 0


def test_a_download_that_goes_on_is_not_removed(person: Person) -> None:
    person.hub.faults.slow_s = 0.03
    process = person.starts("pull", GUIDE, "--yes")
    wait_until(lambda: person.partial_bytes > 100_000, "a part of the file is there")
    done = person.runs("rm", GUIDE, "--yes")
    assert done.returncode == 1 and "another process is fetching" in done.stderr
    person.hub.faults.slow_s = 0.0
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and person.models == [f"{GUIDE}:BF16"]


def test_two_processes_that_want_the_same_model_fetch_it_once(person: Person) -> None:
    person.hub.faults.slow_s = 0.01
    processes = [person.starts("pull", GUIDE, "--yes") for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert person.hub.sent_bytes == GUIDE_BYTES
    assert person.models == [f"{GUIDE}:BF16"]


FAULTS = [
    ("resolve", (503, 1), 0, "trying again in 1 s"),
    ("info", (404, -1), 1, "(404)"),
    ("storage", (403, -1), 1, "(403)"),
    ("info", (429, -1), 1, "(429)"),
]


@pytest.mark.parametrize(("where", "fault", "code", "words"), FAULTS, ids=lambda value: str(value))
def test_faults_of_the_hub_are_reported_in_one_line_and_a_hint(
    person: Person, where: str, fault: tuple[int, int], code: int, words: str
) -> None:
    setattr(person.hub.faults, where, fault)
    person.hub.faults.retry_after = "900" if fault[0] == 429 else ""
    done = person.runs("pull", GUIDE, "--yes")
    assert done.returncode == code and words in done.stderr, done.stderr
    assert ("\nhint: " in done.stderr) == (code == 1)
    assert person.models == ([f"{GUIDE}:BF16"] if code == 0 else [])


def test_a_mirror_that_lists_no_sizes_is_not_said_to_have_no_models(person: Person) -> None:
    person.hub.faults.omits_sizes = True
    done = person.runs("pull", GUIDE, "--yes")
    assert done.returncode == 1 and "without its size or hash" in done.stderr, done.stderr
    assert "has no GGUF files" not in done.stderr and "hint: unset HF_ENDPOINT" in done.stderr


def test_a_dropped_connection_and_a_wrong_hash(person: Person) -> None:
    person.hub.faults.drops = [5_000_000]
    person.hub.repos["someone/wrong-GGUF"] = HubRepo({"x-Q8_0.gguf": HubFile(model_bytes(), promised_sha256="0" * 64)})
    done = person.runs("pull", GUIDE, "--yes")
    assert done.returncode == 0 and "the connection to 127.0.0.1" in done.stderr
    done = person.runs("pull", "someone/wrong-GGUF", "--yes")
    assert done.returncode == 1 and "SHA-256 is wrong" in done.stderr
    assert person.models == [f"{GUIDE}:BF16"] and person.partial_bytes == 0


def test_a_gated_repository(person: Person) -> None:
    done = person.runs("pull", "someone/gated-GGUF", "--yes")
    assert done.returncode == 1 and "gated" in done.stderr
    assert f"{person.hub.url}/someone/gated-GGUF" in done.stderr and "HF_TOKEN" in done.stderr
    assert not person.hub.asked_of_storage()
    done = person.runs("pull", "someone/gated-GGUF", "--yes", HF_TOKEN="hf_other")
    assert done.returncode == 1 and "your token has no access" in done.stderr
    done = person.runs("pull", "someone/gated-GGUF", "--yes", HF_TOKEN=person.hub.token)
    assert done.returncode == 0 and "gated: you have access" in done.stderr
    assert "licence llama3.1" in done.stderr


def test_offline(person: Person) -> None:
    done = person.runs("pull", GUIDE, "--yes", HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "HF_HUB_OFFLINE is set" in done.stderr
    person.runs("pull", GUIDE, "--yes")
    person.hub.asked.clear()
    done = person.runs("pull", GUIDE, "--yes", HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and "is on disk" in done.stderr and person.hub.asked == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_ENDPOINT", "http://127.0.0.1:99999"),
        ("HF_ENDPOINT", "127.0.0.1:8080"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "30s"),
        ("ALL_PROXY", "socks://127.0.0.1:9"),
        ("SSL_CERT_FILE", "/nowhere/at/all.pem"),
        ("SSLKEYLOGFILE", "/nowhere/at/all"),
        ("HF_TOKEN", "hf_\u00e4"),
        ("HF_OIDC_RESOURCE", "x"),
    ],
)
def test_a_setting_of_this_machine_is_named_and_the_hub_is_not_blamed(person: Person, name: str, value: str) -> None:
    done = person.runs("pull", GUIDE, "--yes", **{name: value})
    assert done.returncode == 2 and done.stdout == "" and name in done.stderr, done.stderr
    assert not any(words in done.stderr for words in ("bug", "trying again", "as a hub does", "Warning"))
    assert person.hub.asked == []


def test_a_proxy_that_does_not_answer_is_named(person: Person) -> None:
    proxies = {"http_proxy": "http://me:secret@127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    done = person.runs("pull", GUIDE, "--yes", **proxies)
    assert done.returncode == 1 and "through http_proxy=http://***@127.0.0.1:9 failed" in done.stderr
    assert "check the proxy" in done.stderr and "secret" not in done.stderr


@pytest.mark.parametrize("command", [("rm", GUIDE, "--yes"), ("import", GUIDE, "--target", "demo")])
def test_commands_that_need_no_hub_still_name_what_keeps_its_client_from_loading(
    person: Person, command: tuple[str, ...]
) -> None:
    folder = person.cache / "models--someone--guide-GGUF" / "blobs"
    folder.mkdir(parents=True)
    (folder / f"{'a' * 64}.incomplete").write_bytes(b"begun")
    done = person.runs(*command, HF_HUB_DOWNLOAD_TIMEOUT="30s")
    assert done.returncode == 2 and done.stdout == "" and "'30s'" in done.stderr
    assert "hint: check HF_HUB_DOWNLOAD_TIMEOUT\n" in done.stderr
    assert person.runs("ls", HF_HUB_DOWNLOAD_TIMEOUT="30s").returncode == 0  # which needs no client at all


def test_a_file_that_is_not_gguf_is_reported_after_the_download(person: Person) -> None:
    person.hub.repos["someone/bad-GGUF"] = HubRepo({"bad-Q8_0.gguf": HubFile(b"GGUX" + bytes(4000))})
    done = person.runs("pull", "someone/bad-GGUF", "--yes")
    assert done.returncode == 1 and "not a GGUF file" in done.stderr
    (model,) = [m for m in person.sees("ls")["models"] if m["origin"] == "hub"]
    assert model["problem"]
    assert "unreadable" in person.runs("ls").stdout


def flip_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_file_is_named_and_fetched_anew(person: Person) -> None:
    person.runs("pull", GUIDE, "--yes", "--draft", "ngram,lookahead")  # no model to fetch
    (model,) = list_models(person.cache)
    sound = model.path.read_bytes()
    done = person.runs("pull", GUIDE, "--draft", "none", "--verify")
    assert done.returncode == 0 and "verified 11.9 MB: its hash matches the hub's" in done.stderr
    flip_a_byte(model.blobs[0])
    done = person.runs("pull", GUIDE, "--draft", "none")
    assert done.returncode == 0 and "by name and size; --verify checks their hashes too" in done.stderr
    done = person.runs("pull", GUIDE, "--draft", "none", "--verify")  # there is no terminal to ask on
    assert done.returncode == 2 and "damaged: guide-BF16.gguf: its SHA-256 is not" in done.stderr
    assert model.path.read_bytes() != sound
    done = person.runs("pull", GUIDE, "--draft", "none", "--verify", HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "is damaged" in done.stderr
    assert f"hint: eaglelocal pull {GUIDE}:BF16 --verify" in done.stderr
    done = person.runs("pull", GUIDE, "--draft", "none", "--verify", "--yes")
    assert done.returncode == 0 and "damaged: guide-BF16.gguf" in done.stderr and "checked: " in done.stderr
    assert model.path.read_bytes() == sound and len(person.hub.asked_of_storage()) == 2
    done = person.runs("pull", GUIDE, "--draft", "none", "--verify", HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and "verified 11.9 MB" in done.stderr


def test_only_what_is_damaged_of_a_model_in_parts_is_fetched_anew(person: Person) -> None:
    names = ["x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf"]
    files = {name: HubFile(model_bytes(split=(number, 2)), is_lfs=not number) for number, name in enumerate(names)}
    person.hub.repos["someone/parts-GGUF"] = HubRepo(files)
    assert person.runs("pull", "someone/parts-GGUF", "--yes").returncode == 0
    (model,) = list_models(person.cache)
    flip_a_byte(model.blobs[1])
    person.hub.asked.clear()
    done = person.runs("pull", "someone/parts-GGUF", "--verify", "--yes")
    assert done.returncode == 0 and f"damaged: {names[1]}: its SHA-1 is not" in done.stderr, done.stderr
    assert [path.read_bytes() for path in model.paths] == [file.content for file in files.values()]
    fetched = [asked.path for asked in person.hub.asked if asked.method == "GET" and "/resolve/" in asked.path]
    assert len(fetched) == 1 and fetched[0].endswith(names[1])


def test_target_and_draft_belong_together(person: Person) -> None:
    done = person.runs("pull", GUIDE, "--draft", HEAD, "--yes")
    assert done.returncode == 0, done.stderr
    assert "in 2 files" in done.stderr and "a draft head that fits it" in done.stderr
    assert done.stdout.strip() == f"eaglelocal chat --target {GUIDE}:BF16"
    (draft,) = person.sees("show", GUIDE)["drafts"]
    assert (draft["reference"], draft["on_disk"]) == (f"{HEAD}:BF16", True)
    asked = (
        "chat",
        "What is acceptance length?",
        "--target",
        GUIDE,
        "--max-tokens",
        "12",
        "--temperature",
        "0",
        "--spec",
        "3",  # `auto` may draft nothing in so short an answer
        "--json",
    )
    for draft in ((), ("--draft", f"{HEAD}:bf16")):
        report = json.loads(person.runs(*asked, *draft).stdout.splitlines()[-1])
        assert "EAGLE-3.1 head" in report["draft"] and report["speculation"]["accepted_tokens"] > 0
    person.runs("rm", HEAD, "--yes")
    done = person.runs(*asked, "--draft", HEAD)
    assert done.returncode == 1 and f"eaglelocal pull {HEAD}" in done.stderr
    report = json.loads(person.runs(*asked).stdout.splitlines()[-1])
    assert "lookup" in report["draft"]


def test_a_draft_that_does_not_fit_is_reported(person: Person) -> None:
    person.hub.repos["someone/tiny-GGUF"] = HubRepo({"tiny-Q8_0.gguf": HubFile(model_bytes())})
    done = person.runs("pull", "someone/tiny-GGUF", "--draft", HEAD, "--yes")
    assert done.returncode == 1 and "does not fit" in done.stderr


def test_a_head_can_be_pulled_alone(person: Person) -> None:
    done = person.runs("pull", HEAD, "--yes")
    assert done.returncode == 0 and "a draft head" in done.stderr
    assert done.stdout.strip() == f"eaglelocal chat --target REF --draft {HEAD}:BF16"
    person.hub.repos["someone/head"] = HubRepo({"config.json": HubFile(b"{}"), "model.safetensors": HubFile(b"x")})
    done = person.runs("pull", "someone/head", "--yes")
    assert done.returncode == 0 and "eaglelocal import someone/head --target REF" in done.stderr
    person.hub.repos["someone/nothing"] = HubRepo({"README.md": HubFile(b"x")})
    done = person.runs("pull", "someone/nothing", "--yes")
    assert done.returncode == 2 and "has no GGUF files" in done.stderr


@pytest.mark.parametrize(
    ("published", "fetched"),
    [
        (("model.safetensors", "pytorch_model.bin", "x.bin"), ["config.json", "model.safetensors"]),
        (("optimizer.bin", "pytorch_model.bin"), ["config.json", "pytorch_model.bin"]),
        (("optimizer.pt", "medusa_lm_head.pt"), ["config.json", "medusa_lm_head.pt"]),
    ],
)
def test_a_head_that_is_no_gguf_is_fetched_to_be_imported(
    person: Person, published: tuple[str, ...], fetched: list[str]
) -> None:
    files = {"config.json": HubFile(b"{}", is_lfs=False)} | {name: HubFile(b"weights") for name in published}
    person.hub.repos["someone/head"] = HubRepo(files)
    done = person.runs("pull", GUIDE, "--draft", "someone/head", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"eaglelocal import someone/head --target {GUIDE}:BF16" in done.stderr
    snapshot = next(person.cache.glob("models--someone--head/snapshots/*"))
    assert sorted(path.name for path in snapshot.iterdir()) == fetched


def catalog(person: Person) -> None:
    """Repositories of the catalog, with small files in them."""
    files = {f"Qwen3-8B-{quant}.gguf": HubFile(model_bytes(name=quant)) for quant in ("Q4_K_M", "Q8_0")}
    person.hub.repos["Qwen/Qwen3-8B-GGUF"] = HubRepo(files, licence="apache-2.0")
    person.hub.repos["bartowski/Qwen_Qwen3-8B-GGUF"] = HubRepo(
        {"Qwen3-8B-IQ4_XS.gguf": HubFile(model_bytes(name="IQ"))}
    )


def test_an_entry_of_the_catalogue(person: Person) -> None:
    catalog(person)
    done = person.runs("chat", "--target", "qwen3-8b:Q5_K_M", "hello")
    assert done.returncode == 1 and "qwen3-8b:Q5_K_M is not on disk (5.80 GB to download)" in done.stderr
    assert done.stderr.endswith("hint: eaglelocal pull qwen3-8b:Q5_K_M\n")
    done = person.runs("pull", "qwen3-8b:q8_0", "--yes")
    assert done.returncode == 0, done.stderr
    assert "the draft cannot be downloaded: there is no repository" in done.stderr
    done = person.runs("pull", "qwen3-8b", "--yes", "--draft", "none")
    assert done.returncode == 0, done.stderr
    assert "planned for this machine: qwen3-8b:" in done.stderr or "qwen3-8b does not fit this machine" in done.stderr
    done = person.runs("pull", "qwen3-8b", "--quant", "IQ4_XS", "--draft", "none", "--yes")
    assert done.returncode == 0, done.stderr
    assert {"Qwen/Qwen3-8B-GGUF:Q8_0", "bartowski/Qwen_Qwen3-8B-GGUF:IQ4_XS"} <= set(person.models)
    assert person.sees("show", "qwen3-8b:iq4_xs")["repo"] == "bartowski/Qwen_Qwen3-8B-GGUF"
    drafts = person.sees("show", "qwen3-8b:q8_0")["drafts"]
    assert "AngelSlim/Qwen3-8B_eagle3" in [draft["reference"] for draft in drafts]


def test_a_model_that_drafts_for_itself(person: Person, tmp_path: Path) -> None:
    """The catalog's entry is taken where its files have the MTP layer, and then nothing else need be fetched."""
    parts = {part: write_mtp(tmp_path / f"{part}.gguf", gain=0.0, part=part).read_bytes() for part in MTP_PARTS}
    names = {"unsloth/Qwen3.5-4B-MTP-GGUF": "whole", "unsloth/Qwen3.5-4B-GGUF": "trunk", "someone/layer-GGUF": "layer"}
    for repo, part in names.items():
        person.hub.repos[repo] = HubRepo({"Qwen3.5-4B-Q8_0.gguf": HubFile(parts[part])})
    done = person.runs("pull", "qwen3.5-4b:Q8_0", "--yes")
    assert done.returncode == 0, done.stderr
    assert "its own MTP layer drafts for it" in done.stderr
    assert person.models == ["unsloth/Qwen3.5-4B-MTP-GGUF:Q8_0"]
    seen = person.sees("show", "qwen3.5-4b:Q8_0")
    assert seen["mtp"] is True
    asked = ("hello", "--max-tokens", "24", "--temperature", "0", "--spec", "4", "--json")
    report = person.sees("chat", "--target", "qwen3.5-4b:Q8_0", *asked[:-1])
    assert report["draft"] == "its own MTP layer" and report["speculation"]["accepted_tokens"] > 8
    plain = person.sees("chat", "--target", "qwen3.5-4b:Q8_0", "--draft", "none", *asked[:-1])
    assert (plain["draft"], plain["text"]) == ("none", report["text"])

    done = person.runs("pull", "unsloth/Qwen3.5-4B-GGUF:Q8_0", "--draft", "someone/layer-GGUF", "--yes")
    assert done.returncode == 0 and "an MTP layer that fits it" in done.stderr
    beside = person.sees("chat", "--target", "unsloth/Qwen3.5-4B-GGUF:Q8_0", *asked[:-1])
    assert beside["draft"].startswith("MTP layer") and beside["text"] == report["text"]
    named = person.sees("chat", "--target", "unsloth/Qwen3.5-4B-GGUF:Q8_0", "--draft", "mtp", *asked[:-1])
    assert (named["draft"], named["text"]) == (beside["draft"], report["text"])
    done = person.runs("pull", "unsloth/Qwen3.5-4B-GGUF:Q8_0", "--draft", "mtp", "--yes")
    assert done.returncode == 1 and "has no MTP layer" in done.stderr
    done = person.runs("chat", "--target", "someone/layer-GGUF", *asked)
    assert done.returncode == 1 and "holds an MTP layer" in done.stderr


def test_a_model_whose_mtp_layers_lie_next_to_it(person: Person, tmp_path: Path) -> None:
    target = write_gemma(tmp_path / "gemma.gguf", gain=0.0)
    assistant = write_assistant(tmp_path / "assistant.gguf", target)
    files = {"gemma-4-12b-it-Q8_0.gguf": target, "mtp-gemma-4-12b-it.gguf": assistant}
    repo = HubRepo({name: HubFile(path.read_bytes()) for name, path in files.items()})
    person.hub.repos["unsloth/gemma-4-12b-it-GGUF"] = repo
    done = person.runs("pull", "gemma-4-12b:Q8_0", "--yes")
    assert done.returncode == 0, done.stderr
    assert "an MTP layer that fits it" in done.stderr
    asked = ("chat", "--target", "gemma-4-12b:Q8_0", "hello", "--max-tokens", "24", "--temperature", "0", "--spec", "4")
    report = person.sees(*asked)
    assert report["draft"].startswith("MTP layer") and report["speculation"]["accepted_tokens"] > 8
    assert person.sees(*asked, "--draft", "none")["text"] == report["text"]
    named = person.sees(*asked, "--draft", "mtp-gemma4-12b")
    assert (named["draft"], named["text"]) == (report["draft"], report["text"])
    seen = person.runs("show", "unsloth/gemma-4-12b-it-GGUF:mtp-gemma-4-12b-it.gguf").stdout
    assert "MTP layer of a gemma4-assistant model" in seen


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("pull", "qwen3-8x"), 2, "hint: eaglelocal pull qwen3-8b"),
        (("pull", "Qwen/Qwen3-8B-GUF"), 1, "hint: eaglelocal pull Qwen/Qwen3-8B-GGUF"),
        (("pull", f"{GUIDE}:Q4_0", "--yes"), 2, "it has BF16"),
        (("pull", f"{GUIDE}:BF16", "--quant", "Q8_0"), 2, "two quantizations"),
        (("pull", "./x.gguf"), 2, "path of a file"),
        (("pull", "a/b/c"), 2, "cannot read the reference"),
        (("pull", GUIDE, "--draft", "some thing"), 2, "unknown target 'some-thing'"),
        (("pull", "demo"), 0, "nothing to download"),
        (("rm", "demo@native", "--yes"), 2, "is part of eaglelocal"),
        (("rm", "demo@7b", "--yes"), 1, "not on disk"),
        (("rm", "./x.gguf", "--yes"), 1, "does not exist"),
        (("rm", GUIDE, "--yes"), 1, "eaglelocal ls"),
        (("show", "./x.gguf"), 1, "does not exist"),
        (("pull",), 2, "missing argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_odd_input(person: Person, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = person.runs(*arguments)
    assert done.returncode == code and words.lower() in done.stderr.lower(), done.stderr
    assert not person.hub.asked_of_storage()


def test_lists_fit_a_terminal_and_a_pipe(person: Person) -> None:
    name = "somebody-with-a-long-name/Mistral-Small-3.2-24B-Instruct-2506-GGUF"
    person.hub.repos[name] = HubRepo({"m-Q8_0.gguf": HubFile(model_bytes())})
    person.runs("pull", name, "--yes")
    terminal = Terminal.of(person, "ls")
    assert terminal.end() == 0
    lines = terminal.said.splitlines()
    assert all(len(line) <= 79 for line in lines) and f"{name}:Q8_0" in lines
    (line,) = [line for line in person.runs("ls").stdout.splitlines() if name in line]
    assert line.split()[1:3] == ["17.5", "kB"]


def test_what_lookups_remember_is_forgotten(person: Person) -> None:
    assert "nothing is kept" in person.runs("forget").stderr
    folder = person.home / "state" / "eaglelocal" / "lookups" / "0123"
    folder.mkdir(parents=True)
    (folder / "ab.tokens").write_bytes(bytes(4000))
    assert "--yes is needed" in person.runs("forget").stderr
    assert "texts of 1 key, 4.0 kB" in person.runs("forget", "--yes").stderr
    assert not folder.parent.exists()


def test_forgetting_names_the_models_whose_answers_are_kept(person: Person) -> None:
    """By the note beside the answers, or else by what was learned from them."""
    state = person.home / "state" / "eaglelocal"
    for key, target in (("01", person.home / "model.gguf"), ("23", None), ("45", None)):
        kept = KeptAnswers(state / "learning" / key / "answers", max_bytes=10**6, max_age_s=1e9, target=target)
        kept.append("ann", make_answer(tuple(range(40)), 8, now=time.time()))
    (state / "learning" / "67" / "answers").mkdir(parents=True)  # of a model whose answers were too old
    known = VersionList(target_key="23", target_path="/models/earlier.gguf")
    (state / "learned" / "67").mkdir(parents=True)
    (state / "learned" / "67" / "versions.json").write_text(write_versions(known))
    shown = person.runs("forget").stderr
    for name in (f"{person.home / 'model.gguf'}: ", "/models/earlier.gguf: ", "an unknown model: "):
        assert shown.count(name) == 1


def test_answers_of_one_model_are_forgotten(person: Person) -> None:
    """By its name or, where the file is gone, by the path that it had; those of other models stay."""
    state = person.home / "state" / "eaglelocal"
    here, gone = person.home / "here.gguf", person.home / "gone.gguf"
    here.write_bytes(model_bytes())
    for key, target in ((fingerprint_model(here), None), ("23", gone), ("45", person.home / "other.gguf")):
        kept = KeptAnswers(state / "learning" / key / "answers", max_bytes=10**6, max_age_s=1e9, target=target)
        kept.append("ann", make_answer(tuple(range(40)), 8, now=time.time()))
    (state / "lookups" / "0123").mkdir(parents=True)
    (state / "lookups" / "0123" / "ab.tokens").write_bytes(bytes(4000))
    for path in (here, gone):
        assert "--yes is needed" in person.runs("forget", str(path)).stderr
        assert f"answers of {path} to learn from, " in person.runs("forget", str(path), "--yes").stderr
    assert [folder.name for folder in (state / "learning").iterdir()] == ["45"]
    assert "no answers of" in person.runs("forget", str(here), "--yes").stderr
    assert person.runs("forget", str(gone), "--yes").returncode == 1  # neither a model nor answers
    assert "contradict" in person.runs("forget", str(here), "--heads").stderr
    assert "is not on disk" in person.runs("forget", "demo@1b:bf16", "--yes").stderr  # and it is not made
    assert (state / "lookups" / "0123" / "ab.tokens").exists()


def test_what_was_kept_to_learn_from_is_forgotten_in_every_file(person: Person) -> None:
    """No file of the state or the cache has the answers' tokens afterwards; learned heads go only if asked."""
    state = person.home / "state" / "eaglelocal"
    marker = tuple(range(7000, 7040))
    kept = KeptAnswers(state / "learning" / "0123" / "answers", max_bytes=10**6, max_age_s=1e9)
    kept.append("ann", make_answer(marker, 8, now=time.time()))
    kept.append("local", make_answer(marker, 8, now=time.time()))
    write_state(state / "learning" / "0123" / "45", LearningState(round=LearningRound(0, ("a key",), 1.0)))
    (state / "learned" / "67").mkdir(parents=True)
    (state / "learned" / "67" / "v0001.gguf").write_bytes(b"weights")
    needle = to_bytes(array("i", marker[:4]))
    assert any(needle in path.read_bytes() for path in person.home.rglob("*") if path.is_file())
    shown = person.runs("forget", "--yes").stderr
    assert "answers of 2 keys" in shown and "(an unknown model: " in shown and "learned heads stay" in shown
    assert not any(needle in path.read_bytes() for path in person.home.rglob("*") if path.is_file())
    assert not (state / "learning").exists() and (state / "learned").exists()
    assert "learned heads" in person.runs("forget", "--heads", "--yes").stderr
    assert not (state / "learned").exists()
