"""`doctor` where something is really wrong: no compiler on the path, another version installed, a full disk, ..."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.tiers import some_of
from doubles.weightless_models import REAL, write_sketch

from eaglelocal import locations
from eaglelocal.cli import main
from eaglelocal.doctor.installation import try_library
from eaglelocal.loading import calibration_store
from eaglelocal.probe import nvml_gpus
from eaglelocal.probe.probe import probe
from eaglelocal.probe.process_info import find_port_listener, is_port_taken

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
LINUX = sys.platform.startswith("linux")
Finding = dict[str, str]
Examined = Callable[[], dict[str, Finding]]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EAGLELOCAL_PORT", str(free_port()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def examined(capsys: pytest.CaptureFixture[str]) -> Examined:
    """Runs the command; the findings by their checks."""

    def run() -> dict[str, Finding]:
        code = main.run(["doctor", "--json"])
        report = json.loads(capsys.readouterr().out)
        assert code == (1 if report["problems"] else 0)
        return {finding["check"]: finding for finding in report["findings"]}

    return run


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def pretend_installed(version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of this version, found before the real one."""
    package = folder / "site" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)  # an imported package is found where it came from


def test_this_installation_can_run(examined: Examined) -> None:
    findings = examined()
    assert [name for name in ("library_version", "native_part", "packages") if findings[name]["level"] != "ok"] == []
    assert "library_loads" not in findings


def test_a_list_of_tool_servers_that_cannot_be_read(examined: Examined) -> None:
    path = locations.mcp_file()
    path.parent.mkdir(parents=True)
    path.write_text("{")
    finding = examined()["settings"]
    assert finding["level"] == "problem" and str(path) in finding["text"]


def test_a_wrong_llama_cpp_python_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: Examined
) -> None:
    pretend_installed("0.3.35", tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    findings = examined()
    assert findings["library_version"]["level"] == "problem"
    assert findings["library_version"]["text"].startswith("llama-cpp-python 0.3.35 is installed")
    assert findings["library_version"]["command"].endswith("llama-cpp-python==0.3.36")
    assert findings["compiler"]["level"] == "problem"
    assert findings["compiler"]["text"].startswith("no C and no C++ compiler")


def test_a_compiler_that_a_variable_names_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: Examined
) -> None:
    pretend_installed("0.3.35", tmp_path, monkeypatch)
    monkeypatch.setenv("CC", "a-compiler-of-nobody -O2")
    assert examined()["compiler"]["text"].startswith("no C compiler")


@pytest.mark.skipif(not LINUX, reason="the double is a library of Linux")
def test_a_gpu_without_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: Examined) -> None:
    """A card behind the real NVML binding, and the build for the processor that is installed here."""
    library = tmp_path / "libnvidia-ml.so.1"
    source = ROOT / "tests" / "doubles" / "nvml.c"
    compiler = os.environ.get("CC") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(nvml_gpus, "DRIVER_FILES", (str(library),))
    if "cuda" in probe().llama_cpp.backends:
        pytest.skip("this build has the backend")
    finding = next(iter(examined().values()))
    assert (finding["check"], finding["level"]) == ("gpu_backend", "problem")
    assert finding["text"] == "llama.cpp cannot use NVIDIA Double: this build has no CUDA"
    assert 'CMAKE_ARGS="-DGGML_CUDA=on"' in finding["command"]


def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch, examined: Examined) -> None:
    if not Path("/proc/self").exists() or shutil.disk_usage("/proc").free:
        pytest.skip("no file system without room at hand")
    monkeypatch.setenv("HF_HUB_CACHE", "/proc")
    assert examined()["disk"]["level"] == "problem"


def test_a_tiny_disk(tmp_path: Path) -> None:
    """A file system of one megabyte, mounted in a namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    mount = f"mount -t tmpfs -o size=1m tmpfs {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("namespaces are not allowed here")
    script = f"{mount} && HF_HUB_CACHE={disk}/hub {sys.executable} -m eaglelocal doctor --json"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "disk"]
    assert done.returncode == 1
    assert finding["text"] == f"only 1.0 MB free for downloads in {disk}/hub"


def test_no_token_where_one_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, examined: Examined) -> None:
    monkeypatch.setenv("EAGLELOCAL_TARGET", "meta-llama/Llama-3.1-8B-Instruct:Q4_K_M")
    finding = examined()["hub_token"]
    assert (finding["level"], finding["command"]) == ("warning", "hf auth login")
    token = tmp_path / "cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_abc\n")
    finding = examined()["hub_token"]
    assert finding["level"] == "ok"
    assert "abc" not in finding["text"]


def test_a_stale_calibration(examined: Examined) -> None:
    machine = probe()
    key = {"machine": calibration_store.machine_name(machine), "library": "llama-cpp-python 0.3.30 (cpu)"}
    assert calibration_store.save(key, {})
    finding = examined()["calibration"]
    assert finding["level"] == "warning"
    assert "llama-cpp-python 0.3.30 (cpu)" in finding["text"]
    subprocess.run(finding["command"], shell=True, check=True)
    assert examined()["calibration"]["level"] == "ok"


def test_an_unknown_setting(tmp_path: Path, examined: Examined) -> None:
    file = tmp_path / "config" / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("temprature = 0.5\n")
    finding = examined()["settings"]
    assert finding["level"] == "problem"
    assert "unknown setting temprature: did you mean temperature?" in finding["text"]
    assert finding["command"].endswith(f"vi}} {file}")


def test_a_port_in_use_and_leftover_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: Examined) -> None:
    partial = tmp_path / "cache" / "huggingface" / "hub" / "models--a--b" / "blobs" / "x.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"1" * 1000)
    os.utime(partial, (time.time() - 7200,) * 2)
    leave_an_announcement(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as foreign_server:
        port = foreign_server.getsockname()[1]
        monkeypatch.setenv("EAGLELOCAL_PORT", str(port))
        findings = examined()
    assert findings["port"]["text"].startswith(f"port {port} is taken by ")
    assert not LINUX or f"(pid {os.getpid()})" in findings["port"]["text"]  # elsewhere only root sees it
    assert findings["partial_downloads"]["text"].startswith("a download was interrupted")
    assert findings["leftovers"]["level"] == "warning"
    assert main.run(["ps"]) == 0  # the command that it names
    subprocess.run(findings["partial_downloads"]["command"], shell=True, check=True)
    assert not {"leftovers", "partial_downloads"} & set(examined())


def leave_an_announcement(folder: Path) -> None:
    """Of a server that was killed before it could take it down."""
    code = (
        "import os\nfrom eaglelocal.client.running_servers import keep_announced, describe_this_server\n"
        "with keep_announced(describe_this_server('127.0.0.1', 1, target='demo')):\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60)
    assert list((folder / "state" / "eaglelocal" / "servers").glob("*.json"))


def test_a_library_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: Examined) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    findings = examined()
    assert findings["library_loads"]["level"] == "problem"
    assert findings["library_loads"]["text"].startswith("llama.cpp does not load: ")


def test_a_library_that_crashes_and_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (package / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    assert try_library().failure == "it crashes (SIGILL: an instruction this processor does not have)"
    (package / "__init__.py").write_text("import time\ntime.sleep(60)\n")
    assert try_library(timeout_s=1.5).failure == "it did not load within 1.5 s"


def test_our_own_part_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = shutil.ignore_patterns("*.so", "*.dylib", "__pycache__", "corpus")
    shutil.copytree(ROOT / "eaglelocal", tmp_path / "eaglelocal", ignore=ignored)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "eaglelocal", "doctor", "--json"], capture_output=True, text=True, timeout=60
    )
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "native_part"]
    assert done.returncode == 1
    assert finding["level"] == "problem"
    assert (
        "install --force-reinstall --no-deps " in finding["command"]
    )  # the package, or the folder that it is run from


def test_fewer_processors_than_there_are() -> None:
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2:
        pytest.skip("no affinity")
    one_processor = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    script = f"{one_processor}; from eaglelocal.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "doctor"], capture_output=True, text=True, timeout=60)
    assert f"this shell may use 1 of {os.cpu_count()} processors" in " ".join(done.stdout.split())


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_port_taken("127.0.0.1", port)
        assert not LINUX or (find_port_listener(port) or "").endswith(f"(pid {os.getpid()})")
    assert not is_port_taken("127.0.0.1", port)
    assert not is_port_taken("no.such.host.invalid", port)
    assert find_port_listener(port) is None


def write_config(text: str) -> Path:
    file = locations.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_keys_that_chat_would_refuse_are_a_problem(examined: Examined) -> None:
    file = write_config('[keys]\npaws = "p"\n')
    found = examined()["settings"]
    assert found["level"] == "problem"
    assert f"{file}: keys: unknown action 'paws'" in found["text"]
    assert str(file) in found["command"]
    write_config('[keys]\npause = "p"\n')
    assert examined()["settings"]["level"] == "ok"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ('target = "./nowhere.gguf"', "nowhere.gguf"),
        ('target = "qwen3-8b"', "qwen3-8b"),
        ('target = "demo@7x"', "demo@7x"),
        ('target = "user/repo"\ndraft = "./nowhere.gguf"', "user/repo"),
    ],
)
def test_a_model_that_chat_would_refuse_is_a_problem(examined: Examined, config: str, why: str) -> None:
    write_config(config)
    found = examined()["model"]
    assert (found["level"], why in found["text"]) == ("problem", True)


def test_a_model_that_chat_runs_is_named(examined: Examined) -> None:
    write_config('target = "demo"')
    assert examined()["model"] == {
        "check": "model",
        "level": "ok",
        "text": "`eaglelocal chat` runs demo",
        "command": None,
    }


def test_a_model_larger_than_memory_would_be_read_from_disk_for_each_token(examined: Examined, tmp_path: Path) -> None:
    path = write_sketch(tmp_path / "large.gguf", replace(REAL["llama-3.3-70b"], type="F32"))
    write_config(f'target = "{path}"')
    found = examined()["model"]
    assert found["level"] == "problem"
    assert "would be read from the disk for each token" in found["text"]


NATIVE = 'target = "demo@native"\n'


@pytest.mark.parametrize(
    ("config", "is_refused"),
    some_of(
        [
            (NATIVE, False),
            (f"{NATIVE}ctx = 1024", False),
            (f'{NATIVE}draft = "ngram"', False),
            (f"{NATIVE}ctx = 9999", False),
            (f'{NATIVE}draft = "./nowhere.gguf"', True),
            (f'{NATIVE}draft = "e3-nobody"', True),
            (f'{NATIVE}device = "CUDA7"', True),
            (f'{NATIVE}split = "3,1"', True),
            (f"{NATIVE}n_cpu_moe = 3", False),
            (f'{NATIVE}mmproj = "./nowhere.gguf"', True),
            (f'{NATIVE}kv_type = "q4_0"\nflash_attn = "off"', True),
            ('target = "demo@100m:q4_0"\ndraft = "e3-nobody"', True),
            ('url = "http://127.0.0.1:9"', True),
            ('url = "nonsense://x"', True),
        ],
        8,
        rest=pytest.mark.slow,
    ),
)
def test_doctor_refuses_what_chat_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: Examined, config: str, is_refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(config)
    found = examined()["model"]
    chat = [sys.executable, "-m", "eaglelocal", "chat", "hi", "--max-tokens", "1"]
    done = subprocess.run(chat, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert (found["level"], done.returncode == 0) == (("problem", False) if is_refused else ("ok", True)), done.stderr
    if is_refused:
        assert found["command"] or "(" in found["text"], found  # what to do
        assert "bug" not in found["text"]


def test_doctor_says_that_a_model_does_not_fit_and_what_would_help(examined: Examined) -> None:
    write_config('target = "demo@70b:bf16"\nctx = 512\n')
    found = examined()["model"]
    assert found["level"] == "problem"
    assert "`eaglelocal chat` would fail: " in found["text"]
    assert not list(locations.generated_models_dir().glob("*"))  # it only looked


def test_the_command_of_a_refused_model_can_be_run(examined: Examined) -> None:
    write_config(f'{NATIVE}kv_type = "q4_0"\nflash_attn = "off"')
    assert examined()["model"]["command"] == "eaglelocal chat --flash-attn auto"
