"""`eaglelocal export vllm|compose|helm` as people run it, with a hub on the loopback interface."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from doubles.commands import run_command
from doubles.empty_home import home_variables
from doubles.loopback_hub import HubRepo, LoopbackHub, serving
from doubles.shell_words import split_command
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.cli import export
from eaglelocal.cli.export import format_plan, plan_order
from eaglelocal.cli.export_head import ExportFlags
from eaglelocal.errors import UsageError
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.preparation.vllm.exports import PAIR, digest_pins, list_problems

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
TARGET, HEAD = demo_sources()
CATALOG = load_catalog()
TARGET_COMMIT, DRAFT_COMMIT, OTHER = "1a" * 20, "2b" * 20, "3c" * 20
DRAFT_REPO = "AngelSlim/Qwen3-8B_eagle3"
QWEN = ("qwen3-8b", "--machine", "h100-sxm", "--draft", "e3-qwen3-8b-angelslim")
# fields of an entry of modelSpec in helm/values.schema.json of vLLM's production-stack, with their types
CHART_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "repository": str, "tag": str, "modelURL": str, "modelRevision": str, "replicaCount": int,
    "requestCPU": int, "requestMemory": str, "requestGPU": (int, float, str), "requestGPUType": str,
    "pvcStorage": str, "labels": dict, "podLabels": dict, "podAnnotations": dict, "hf_token": (str, dict),
    "vllmConfig": dict,
}  # fmt: skip
CHART_VLLM_FIELDS: dict[str, type | tuple[type, ...]] = {
    "enablePrefixCaching": bool, "maxModelLen": int, "maxNumSeqs": int, "tensorParallelSize": int,
    "gpuMemoryUtilization": (int, float), "extraArgs": list,
}  # fmt: skip


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    repos = {"Qwen/Qwen3-8B": HubRepo({}, commit=TARGET_COMMIT), DRAFT_REPO: HubRepo({}, commit=DRAFT_COMMIT)}
    with serving(LoopbackHub(repos)) as running:
        yield running


@pytest.fixture
def environ(tmp_path: Path, hub: LoopbackHub) -> dict[str, str]:
    return empty_home(tmp_path, hub)


def empty_home(folder: Path, hub: LoopbackHub) -> dict[str, str]:
    """A person without files or variables of ours."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("EAGLELOCAL_", "XDG_", "HF_"))}
    homes = home_variables(folder)
    own = {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hf"), "HF_ENDPOINT": hub.url}
    return {**plain, **homes, **own}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("export", *arguments, environ=environ)


def read_flags(words: list[str]) -> dict[str, str]:
    return {words[number]: words[number + 1] for number in range(0, len(words) - 1, 2)}


def test_a_command_pins_target_and_draft_to_the_commits_of_the_hub(environ: dict[str, str]) -> None:
    done = run(environ, "vllm", *QWEN, "--ctx", "8192", "--parallel", "24")
    assert done.returncode == 0, done.stderr
    words = split_command(done.stdout)
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    flags = read_flags(words[3:])
    assert flags["--revision"] == flags["--tokenizer-revision"] == TARGET_COMMIT
    assert (flags["--max-model-len"], flags["--max-num-seqs"]) == ("8192", "24")
    assert 0.2 < float(flags["--gpu-memory-utilization"]) < 0.5
    config = json.loads(flags["--speculative-config"])
    assert (config["method"], config["model"], config["revision"]) == ("eagle3", DRAFT_REPO, DRAFT_COMMIT)
    schedule = config["num_speculative_tokens_per_batch_size"]
    assert schedule[0][0] == 1 and schedule[-1][1] == 24
    assert max(length for _, _, length in schedule) == config["num_speculative_tokens"]


def test_commits_stay_as_they_were_used(environ: dict[str, str], hub: LoopbackHub) -> None:
    """The hub moves on, or cannot be asked: the same pair is exported, until another commit is stated."""
    first = run(environ, "vllm", *QWEN)
    assert first.returncode == 0, first.stderr
    lock = Path(environ["XDG_CONFIG_HOME"]) / "eaglelocal" / "pairs.lock"
    assert json.loads(lock.read_text()) == {"Qwen/Qwen3-8B": TARGET_COMMIT, DRAFT_REPO: DRAFT_COMMIT}
    nowhere = {**environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert run(nowhere, "vllm", *QWEN).stdout == first.stdout
    lock.write_text(json.dumps({"Qwen/Qwen3-8B": OTHER, DRAFT_REPO: 5}))
    asked = run(environ, "vllm", *QWEN)
    assert asked.returncode == 1 and f"Qwen/Qwen3-8B has no revision '{OTHER}'" in asked.stderr
    newest = run(environ, "vllm", *QWEN, "--revision", "main")
    assert newest.stdout == first.stdout and json.loads(lock.read_text())["Qwen/Qwen3-8B"] == TARGET_COMMIT
    lock.write_text('{"a/b": "main", }')
    torn = run(environ, "vllm", *QWEN)
    assert (torn.returncode, lock.read_text()) == (
        2,
        '{"a/b": "main", }',
    ) and "pairs.lock cannot be read" in torn.stderr
    lock.write_text('{"a/b": "main"}')
    assert run(environ, "vllm", *QWEN).returncode == 0 and json.loads(lock.read_text())["a/b"] == "main"


def test_lookups_of_llama_are_the_one_of_vllm(environ: dict[str, str]) -> None:
    texts = [run(environ, "vllm", *QWEN[:3], "--draft", name) for name in ("ngram", "ngram-mod")]
    assert texts[0].returncode == 0, texts[0].stderr
    assert texts[0].stdout == texts[1].stdout and '"method":"ngram"' in texts[0].stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("vllm",), 2, "TARGET is missing", "eaglelocal export vllm qwen3-8b"),
        (("vlm", "qwen3-8b"), 2, "'vlm' is not one of vllm, compose, helm", "eaglelocal export vllm"),
        (("vllm", *QWEN, "--revision", OTHER), 1, f"Qwen/Qwen3-8B has no revision '{OTHER}'", ""),
        (("vllm", *QWEN, "--draft-revision", "v9"), 1, f"{DRAFT_REPO} has no revision 'v9'", ""),
        (("vllm", *QWEN, "--target-repo", "nobody/nothing"), 1, "there is no repository nobody/nothing", ""),
        (("vllm", "qwen3-8b", "--draft", "e3-qwen3-14b-angelslim"), 2, "drafts for qwen3-14b, not for", "--draft auto"),
        (("vllm", "qwen3-8b", "--draft-repo", "AngelSlim/Qwen3-14B_eagle3"), 2, "drafts for qwen3-14b", "--draft"),
        (("vllm", "qwen3-8b", "--draft-repo", "some/draft"), 2, "does not know some/draft", "--draft-method eagle3"),
        (
            ("vllm", "qwen3-8b", "--machine", "h100-sxm", "--draft", str(HEAD)),
            1,
            "hidden states of 256",
            "--draft auto",
        ),
        (("vllm", str(TARGET)), 2, "is not known", "--target-repo"),
        (("vllm", *QWEN, "--load", "many"), 2, "--load must be", "eaglelocal export vllm qwen3-8b"),
        (("helm", *QWEN, "--queue", "A_b"), 2, "is not a name in Kubernetes", "eaglelocal export helm qwen3-8b"),
        (("vllm", *QWEN, "--machine", "rtx-3060"), 1, "qwen3-8b needs", "--machine 2x-rtx-4090"),
        (("vllm", "llama-3.3-70b", "--machine", "h100-sxm"), 1, "llama-3.3-70b needs", "a smaller target"),
        (("helm", "demo@native", "--machine", "h100-sxm", "--target-repo", "Qwen/Qwen3-8B"), 2, "a cluster cannot", ""),
        (("compose", "demo@native", "--machine", "rtx-4090", "--target-repo", str(ROOT)), 2, "in a repository", ""),
        (("compose", *QWEN[:3], "--draft-repo", str(ROOT), "--draft-method", "eagle3"), 2, "a draft in a repo", "USER"),
        (("helm", *QWEN[:3], "--draft-repo", str(ROOT), "--draft-method", "eagle3"), 2, "a draft in a repo", "USER"),
        (("vllm", *QWEN[:3], "--draft-repo", "/no/where", "--draft-method", "eagle3"), 2, "no folder /no/where", ""),
        (("vllm", *QWEN, "--target-repo", "tests/unit"), 1, "there is no repository tests/unit", ""),
        (("vllm", "qwen3-8b", "--draft-revision", OTHER), 2, "needs a draft that is named", ""),
        (
            ("vllm", "demo@native", "--target-repo", "Qwen/Qwen3-8B", "--draft", str(HEAD), "--draft-revision", OTHER),
            2,
            "is in no repository",
            "",
        ),
        (("vllm", *QWEN, "--draft-method", "eagle3"), 2, "needs --draft-repo", ""),
        (("vllm", *QWEN, "--draft-repo", DRAFT_REPO), 2, "excludes --draft-repo", ""),
        (("vllm", *QWEN[:3], "--draft-repo", DRAFT_REPO, "--draft-method", "medusa"), 2, "drafts as eagle3", "eagle3"),
        (("vllm", *QWEN, "--queue", "batch"), 2, "--queue is of helm", ""),
        (("vllm", *QWEN, "--load", "batch", "--parallel", "8"), 2, "beside --parallel", ""),
        (("compose", *QWEN[:3], "--draft", "suffix"), 2, "arctic-inference", "--draft ngram"),
        (("vllm", "--check", "x"), 2, "only Helm values", "eaglelocal export helm --check"),
        (("helm", "--check", "./nowhere.yaml"), 2, "cannot be read", ""),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(
    arguments: tuple[str, ...], code: int, message: str, hint: str, environ: dict[str, str]
) -> None:
    done = run(environ, *arguments)
    assert done.returncode == code, done.stderr
    error, _, rest = done.stderr.partition("\n")
    assert error.startswith("error: ") and message in error and hint in rest
    assert done.stdout == ""


def test_offline_a_commit_must_be_stated_and_is_then_taken(environ: dict[str, str]) -> None:
    offline = {**environ, "HF_HUB_OFFLINE": "1"}
    done = run(offline, "vllm", *QWEN)
    assert done.returncode == 2 and "the commit of Qwen/Qwen3-8B is not known" in done.stderr
    assert "--revision " in done.stderr
    done = run(offline, "vllm", *QWEN, "--revision", OTHER)
    assert done.returncode == 2 and f"the commit of {DRAFT_REPO} is not known" in done.stderr
    assert "--draft-revision " in done.stderr
    done = run(offline, "vllm", *QWEN, "--revision", OTHER, "--draft-revision", OTHER)
    assert done.returncode == 0 and done.stdout.count(OTHER) == 3
    done = run(offline, "vllm", *QWEN, "--revision", "main", "--draft-revision", OTHER)
    assert done.returncode == 2  # a branch is no commit


def test_a_command_has_a_flag_on_each_line_and_is_one_to_a_shell(environ: dict[str, str]) -> None:
    command = run(environ, "vllm", *QWEN).stdout
    first, *lines = command.removesuffix("\n").split(" \\\n  ")
    assert first.startswith("vllm serve ") and lines and all(line.startswith("--") for line in lines)
    printing = command.replace("vllm serve", "printf '%s\\n' vllm serve", 1)
    done = subprocess.run(["sh", "-c", printing], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == split_command(command)


def test_a_compose_file_has_the_same_arguments(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    done = run(environ, "compose", *QWEN, "--out", str(file))
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(file.read_text())["services"]["vllm"]
    line = run(environ, "vllm", *QWEN).stdout
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    assert ["vllm", "serve", *service["command"]] == split_command(line)
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 1
    done = run(environ, "compose", *QWEN, "--out", str(file))
    assert done.returncode == 2 and "`--force` replaces it" in done.stderr


def test_an_own_head_is_exported_beside_the_file(environ: dict[str, str], tmp_path: Path) -> None:
    own = ("demo@native", "--machine", "rtx-4090", "--target-repo", "Qwen/Qwen3-8B", "--draft", str(HEAD))
    place = tmp_path / "a$b:c"  # both mean something to compose
    place.mkdir()
    file = place / "vllm.yaml"
    done = run(environ, "compose", *own, "--out", str(file))
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(file.read_text())["services"]["vllm"]
    folder = place / f"{HEAD.stem}-{hashlib.sha256(HEAD.read_bytes()).hexdigest()[:8]}-export"
    config = json.loads(read_flags(service["command"][1:])["--speculative-config"])
    mount = {"type": "bind", "source": str(folder).replace("$", "$$"), "target": config["model"], "read_only": True}
    assert mount in service["volumes"] and config["model"] == f"/heads/{folder.name}"
    assert json.loads((folder / "config.json").read_text())["speculators_model_type"] == "eagle3"
    done = run(environ, "vllm", *own)
    assert done.returncode == 0 and "eaglelocal export" in done.stderr and "--out" in done.stderr


HOSTILE = ("x\nevil: yes\n#", "x\revil: yes", "x\x85evil: yes", "x\u2028evil: yes", "x\x1b[31m", "\ufeff#", "${HOME}")
NAMES = st.one_of(
    st.sampled_from(HOSTILE), st.text(max_size=12), st.text("#:-'\"\\\n\r\t \x85${}&*!|>%@`", max_size=12)
)


def make_serving_order(form: str) -> ExportFlags:
    return ExportFlags(
        what=form,
        target=str(TARGET),
        draft=str(HEAD) if form == "compose" else "none",
        machine="rtx-4090",
        load="batch",
        target_repo="Qwen/Qwen3-8B",
        revision=TARGET_COMMIT,
    )


def replace_texts(content: object, old: str, new: str) -> object:
    """Return a document with one text in the place of another in all its texts."""
    if isinstance(content, str):
        return content.replace(old, new)
    if isinstance(content, list):
        return [replace_texts(one, old, new) for one in content]
    return {key: replace_texts(one, old, new) for key, one in content.items()} if isinstance(content, dict) else content


def find_named(content: Any, form: str) -> list[dict[str, Any]]:
    """Return the mappings whose `name` is made of the target's name."""
    if form == "compose":
        return []
    if form == "helm":
        return [content["servingEngineSpec"]["modelSpec"][0]]
    [element] = content["spec"]["generators"][0]["list"]["elements"]
    return [content["metadata"], element, *find_named(element["values"], "helm")]


@pytest.mark.parametrize("form", ["compose", "helm", "argocd"])
def test_a_name_changes_nothing_in_a_file_but_its_own_value(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    order, plain = make_serving_order(form), "harmless"
    plan = plan_order(order)
    folder = Path("/srv")
    monkeypatch.setattr(export, "locate_head", lambda order, head: folder / head.name)

    def write(name: str) -> object:
        draft = plan.pair.draft and replace(plan.pair.draft, head_file=Path(name))
        target = replace(plan.pair.target, id=name)
        text = format_plan(order, replace(plan, pair=replace(plan.pair, target=target, draft=draft)))
        found = yaml.safe_load(text)
        assert all(re.fullmatch("[a-z0-9-]+", each.pop("name")) for each in find_named(found, form))
        return found

    content = write(plain)

    @given(NAMES.filter(lambda name: name not in ("", ".", "..") and not set(name) & set("/\0")))
    def check(name: str) -> None:
        escaped = name.replace("$", "$$") if form == "compose" else name
        assert write(name) == replace_texts(content, plain, escaped)

    check()
    with pytest.raises(UsageError, match="is not UTF-8"):
        write("x\udcff")


def test_a_file_that_names_itself_an_entry_makes_none(environ: dict[str, str], tmp_path: Path) -> None:
    pins = ("--machine", "rtx-4090", "--target-repo", "Qwen/Qwen3-8B", "--draft", "none")
    for number, name in enumerate(("x", *HOSTILE, "-x", "x\udcff")):
        (tmp_path / f"{name}.gguf").symlink_to(TARGET)
        done = run(environ, "helm", str(tmp_path / f"{name}.gguf"), *pins, "--out", str(tmp_path / f"{number}.yaml"))
        assert done.returncode == 0, done.stderr
        assert yaml.safe_load((tmp_path / f"{number}.yaml").read_text()).keys() == {"servingEngineSpec"}


@pytest.fixture(scope="module")
def values_text(tmp_path_factory: pytest.TempPathFactory, hub: LoopbackHub) -> str:
    folder = tmp_path_factory.mktemp("helm")
    environ, file = empty_home(folder, hub), folder / "values.yaml"
    done = run(environ, "helm", *QWEN, "--mig", "--load", "batch", "--out", str(file))
    assert done.returncode == 0, done.stderr
    again = run(environ, "helm", *QWEN, "--mig", "--load", "batch")
    assert again.stdout == file.read_text()  # nothing in it changes by itself
    done = run(environ, "helm", "--check", str(file))
    assert done.returncode == 0 and "belong together" in done.stdout, done.stderr
    return file.read_text()


@pytest.fixture
def values(values_text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(values_text))


def test_values_have_the_fields_of_the_chart(values: dict[str, Any]) -> None:
    [spec] = values["servingEngineSpec"]["modelSpec"]
    for fields, found in ((CHART_FIELDS, spec), (CHART_VLLM_FIELDS, spec["vllmConfig"])):
        assert set(found) <= set(fields)
        for name, value in found.items():
            assert isinstance(value, fields[name]), name
    assert all(isinstance(word, str) for word in spec["vllmConfig"]["extraArgs"])
    assert (spec["modelURL"], spec["modelRevision"]) == ("Qwen/Qwen3-8B", TARGET_COMMIT)
    assert spec["requestGPUType"].startswith("nvidia.com/mig-") and spec["requestGPU"] == 1
    assert spec["labels"] == spec["podLabels"] == {"kueue.x-k8s.io/queue-name": "batch"}


def set_draft(values: dict[str, Any], **changes: object) -> None:
    words = values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["extraArgs"]
    place = words.index("--speculative-config") + 1
    config = {**json.loads(words[place]), **changes}
    words[place] = json.dumps({key: value for key, value in config.items() if value is not None})


def set_target(values: dict[str, Any], **changes: object) -> None:
    values["servingEngineSpec"]["modelSpec"][0].update(changes)


def add_words(values: dict[str, Any], *words: str) -> None:
    values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["extraArgs"] += words


def set_mirror(values: dict[str, Any], id: str | None) -> None:
    """Serve a mirror of the target, and annotate it with this id."""
    spec = values["servingEngineSpec"]["modelSpec"][0]
    config = json.loads(spec["vllmConfig"]["extraArgs"][-1])
    pins = ["some/mirror", TARGET_COMMIT, config["model"], config["revision"]]
    set_target(values, modelURL="some/mirror", podAnnotations={PAIR: digest_pins(pins), "eaglelocal/target": id})


def test_a_mirror_is_checked_as_what_it_mirrors(values: dict[str, Any]) -> None:
    set_mirror(values, "qwen3-8b")
    assert not list(list_problems(values, CATALOG))


def remove_words(values: dict[str, Any], flag: str) -> None:
    words = values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["extraArgs"]
    del words[words.index(flag) : words.index(flag) + 2]


def set_words(values: dict[str, Any], words: object) -> None:
    values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["extraArgs"] = words


SPOILED: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda values: set_target(values, modelURL="Qwen/Qwen3-14B"), "drafts for Qwen/Qwen3-8B, not for Qwen/Qwen3-14B"),
    (lambda values: set_draft(values, model="AngelSlim/Qwen3-14B_eagle3"), "drafts for Qwen/Qwen3-14B"),
    (lambda values: set_draft(values, model="some/draft"), "target or draft was changed alone"),
    (lambda values: set_draft(values, revision=OTHER), "target or draft was changed alone"),
    (lambda values: set_target(values, modelRevision=OTHER), "target or draft was changed alone"),
    (lambda values: set_target(values, modelRevision="main"), "modelRevision must be a commit"),
    (lambda values: set_target(values, modelRevision=None), "modelRevision must be a commit"),
    (lambda values: set_draft(values, revision=None), "revision must be a commit"),
    (lambda values: set_target(values, podAnnotations={}), "the annotation eaglelocal/pair is missing"),
    (lambda values: set_draft(values, method=None), "method must be one of"),
    (lambda values: set_draft(values, disable_by_batch_size=8), "disable_by_batch_size is of an old vLLM"),
    (lambda values: add_words(values, "--speculative-model", "x"), "--speculative-model is of an old vLLM"),
    (lambda values: add_words(values, "--num_speculative_tokens=3"), "is of an old vLLM"),
    (lambda values: set_draft(values, num_speculative_tokens=0), "num_speculative_tokens must be"),
    (lambda values: set_draft(values, num_speculative_tokens_per_batch_size=[[2, 9, 1]]), "must begin at 1"),
    (lambda values: set_draft(values, num_speculative_tokens_per_batch_size=[[1, 9, 99]]), "has more than"),
    (lambda values: add_words(values, "--revision", OTHER), "--revision is given more than once"),
    (lambda values: add_words(values, "--speculative_config={}"), "--speculative-config is given more than once"),
    (lambda values: add_words(values, "--speculative-config.model", "x"), "must be written whole"),
    (lambda values: add_words(values, "-sc", "{}"), "-sc must be written --speculative-config"),
    (lambda values: add_words(values, "--model=some/model"), "--model sets another model"),
    (lambda values: remove_words(values, "--revision"), "--revision is missing in extraArgs"),
    (lambda values: remove_words(values, "--tokenizer-revision"), "--tokenizer-revision is missing"),
    (lambda values: set_words(values, "--revision x"), "extraArgs must be a list, not str"),
    (lambda values: set_mirror(values, "qwen3-14b"), "drafts for Qwen/Qwen3-8B, not for some/mirror"),
    (lambda values: set_mirror(values, None), "drafts for Qwen/Qwen3-8B, not for some/mirror"),
    (lambda values: set_target(values, podAnnotations={"eaglelocal/target": "qwen3-14b"}), "Qwen/Qwen3-8B is qwen3-8b"),
    (lambda values: values.clear(), "has no model"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_values_that_do_not_match_are_refused(
    spoil: Callable[[dict[str, Any]], object],
    message: str,
    values: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoiled = copy.deepcopy(values)
    spoil(spoiled)
    assert any(message in problem for problem in list_problems(spoiled, CATALOG))
    assert not list(list_problems(values, CATALOG))


@pytest.mark.parametrize(
    "content", ["[", "a: [1", "{}", "servingEngineSpec: 3", "- 1", "", "\x00", "servingEngineSpec: {modelSpec: [3]}"]
)
def test_a_file_without_helm_values_is_refused(content: str, environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(content)
    done = run(environ, "helm", "--check", str(file))
    assert done.returncode in (1, 2) and done.stderr.startswith("error: ") and "bug" not in done.stderr
