"""Models of LM Studio, of Ollama and in folders of one's own: found under short names, and what a target then means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles.empty_home import enter_empty_home
from doubles.hub_models import model_bytes

from eaglelocal import locations
from eaglelocal.catalog.reference import EmbeddedModel, File, Profile, Repo
from eaglelocal.cli.deletion import find_removal
from eaglelocal.cli.ls import entry_table
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.hub.inventory import list_all_models
from eaglelocal.hub.model_details import describe_model
from eaglelocal.hub.model_library import LM_STUDIO, OLLAMA, OWN_FOLDER, list_library, locate_reference
from eaglelocal.preparation.decision import resolve
from eaglelocal.preparation.model_choices import list_choices, list_names

MODEL, TEMPLATE = "application/vnd.ollama.image.model", "application/vnd.ollama.image.template"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_empty_home(monkeypatch, tmp_path)


def put(path: Path, name: str = "tiny") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model_bytes(name=name))
    return path


def put_in_ollama(home: Path, place: str, digit: str, name: str = "tiny") -> Path:
    digest = digit * 64
    manifest = home / "ollama" / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": TEMPLATE, "digest": f"sha256:{'f' * 64}", "size": 3},
        {"mediaType": MODEL, "digest": f"sha256:{digest}", "size": 9},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return put(home / "ollama" / "blobs" / f"sha256-{digest}", name)


def test_ollamas_models_have_the_names_that_ollama_gives_them(home: Path) -> None:
    small = put_in_ollama(home, "registry.ollama.ai/library/llama3.2/3b", "1")
    put_in_ollama(home, "registry.ollama.ai/library/qwen3/latest", "2")
    put_in_ollama(home, "registry.ollama.ai/somebody/mine/q8", "3")
    put_in_ollama(home, "hf.co/unsloth/Qwen3-4B-GGUF/Q4_K_M", "4")
    names = ["hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M", "llama3.2:3b", "qwen3:latest", "somebody/mine:q8"]
    assert [(model.name, model.place) for model in list_library()] == [(name, OLLAMA) for name in names]
    assert locate_reference("llama3.2:3b") == File(small)
    assert isinstance(locate_reference("qwen3"), File), "as `ollama run qwen3` takes the tag `latest`"
    assert isinstance(locate_reference(names[0]), File)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"layers": 3}',
        b'{"layers": [{"mediaType": "' + MODEL.encode() + b'", "digest": "../../x"}]}',
    ],
)
def test_a_manifest_that_cannot_be_read_is_skipped(home: Path, content: bytes) -> None:
    put_in_ollama(home, "registry.ollama.ai/library/llama3.2/3b", "1")
    (home / "ollama/manifests/registry.ollama.ai/library/llama3.2/broken").write_bytes(content)
    put_in_ollama(home, "registry.ollama.ai/library/gone/1b", "2").unlink()
    assert [model.name for model in list_library()] == ["llama3.2:3b"]


def test_a_model_of_ollama_is_labelled_as_it_was_named(home: Path) -> None:
    blob = put_in_ollama(home, "registry.ollama.ai/library/llama3.2/3b", "1", "Llama 3.2 3B Lc100K Mix1 Ep2")
    plan = resolve(RunOptions(target="llama3.2:3b", draft="none"), on_progress=lambda share, what: None)
    assert (plan.target_label, plan.target.parent.name) == ("llama3.2:3b", "blobs")
    plan = resolve(RunOptions(target=str(blob), draft="none"), on_progress=lambda share, what: None)
    assert plan.target_label == "Llama 3.2 3B Lc100K Mix1 Ep2", "without the digest"
    assert describe_model("llama3.2:3b").about.name == "Llama 3.2 3B Lc100K Mix1 Ep2"


def test_two_tags_of_one_file_both_mean_it(home: Path) -> None:
    blob = put_in_ollama(home, "registry.ollama.ai/library/qwen3/8b", "1")
    put_in_ollama(home, "registry.ollama.ai/library/qwen3/latest", "1")
    assert [model.name for model in list_library()] == ["qwen3:8b"]
    for text in ("qwen3:8b", "qwen3:latest", "qwen3"):
        assert locate_reference(text) == File(blob)


def test_a_file_beside_one_of_lm_studio_has_a_name_too(home: Path) -> None:
    own = put(home / "models" / "x-Q8_0.gguf")
    put(home / ".lmstudio/models/a/x-GGUF/x-Q8_0.gguf")
    folders = [str(home / "models")]
    assert [model.name for model in list_library(folders)] == ["a/x-GGUF/x-Q8_0", "models/x-Q8_0"]
    assert locate_reference("models/x-Q8_0", folders) == File(own)


@pytest.mark.parametrize(("reference", "hint"), [("llama3.2:3b", "ollama rm llama3.2:3b"), ("nope", "eaglelocal ls")])
def test_what_cannot_be_removed_here_says_what_does(home: Path, reference: str, hint: str) -> None:
    blob = put_in_ollama(home, "registry.ollama.ai/library/llama3.2/3b", "1")
    studio = put(home / ".lmstudio/models/a/x-GGUF/x-Q8_0.gguf")
    own = put(home / "elsewhere.gguf")
    with pytest.raises(UsageError, match=reference) as caught:
        find_removal(reference)
    assert caught.value.hint == hint
    for path, hint in ((blob, "ollama rm llama3.2:3b"), (studio, "delete it in LM Studio"), (own, f"rm {own}")):
        with pytest.raises(UsageError) as caught:
            find_removal(str(path))
        assert hint in caught.value.hint


def test_lm_studios_models_are_found_under_the_name_of_the_file_and_of_the_repository(home: Path) -> None:
    models = home / ".lmstudio" / "models"
    path = put(models / "lmstudio-community" / "Qwen3-4B-GGUF" / "Qwen3-4B-Q4_K_M.gguf")
    put(models / "lmstudio-community" / "Qwen3-4B-GGUF" / "mmproj-model-f16.gguf")
    put(models / "half" / "x-GGUF" / "x-Q8_0-00001-of-00002.gguf")
    (found,) = list_library()
    assert (found.name, found.place, found.path) == ("Qwen3-4B-Q4_K_M", LM_STUDIO, path)
    for text in ("Qwen3-4B-Q4_K_M", "qwen3-4b-q4_k_m", "lmstudio-community/Qwen3-4B-GGUF:Q4_K_M"):
        assert locate_reference(text) == File(path)
    assert locate_reference("lmstudio-community/Qwen3-4B-GGUF") == File(path)


def test_the_folder_that_lm_studios_settings_name_is_looked_through(home: Path) -> None:
    moved = home / "disk" / "lm"
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    put(home / "downloads" / "a" / "b" / "one.gguf")
    put(moved / "models" / "a" / "b" / "two.gguf")
    moved.joinpath("settings.json").write_text(json.dumps({"downloadsFolder": str(home / "downloads")}))
    assert [model.name for model in list_library()] == ["one", "two"]


def test_a_folder_of_ones_own(home: Path) -> None:
    path = put(home / "models" / "deep" / "Mine-Q8_0.gguf")
    assert list_library() == []
    (found,) = list_library(["~/models"])
    assert (found.name, found.place) == ("Mine-Q8_0", OWN_FOLDER)
    assert locate_reference("mine-q8_0", ["~/models"]) == File(path)
    assert isinstance(locate_reference("mine-q8_0"), Profile)


def test_files_of_one_name_are_distinguished_by_their_folders(home: Path) -> None:
    for user in ("a", "b"):
        put(home / "models" / user / "x-GGUF" / "x-Q8_0.gguf", user)
    (home / "models" / "again").symlink_to(home / "models" / "a")
    folders = [str(home / "models")]
    assert [model.name for model in list_library(folders)] == ["a/x-GGUF/x-Q8_0", "b/x-GGUF/x-Q8_0"]
    assert locate_reference("b/x-GGUF/x-Q8_0", folders) == File(home / "models/b/x-GGUF/x-Q8_0.gguf")


def test_several_models_of_a_repository_must_be_named(home: Path) -> None:
    for quant in ("Q4_0", "Q8_0"):
        put(home / ".lmstudio/models/a/x-GGUF" / f"x-{quant}.gguf", quant)
    with pytest.raises(UsageError, match="means several models") as caught:
        locate_reference("a/x-GGUF")
    assert caught.value.hint == "x-Q4_0 or x-Q8_0"


def test_what_has_another_meaning_keeps_it(home: Path) -> None:
    for name in ("demo", "qwen3-8b"):
        put(home / "models" / f"{name}.gguf")
    folders = [str(home / "models")]
    assert locate_reference("demo", folders) == EmbeddedModel("demo")
    assert locate_reference("qwen3-8b", folders) == Profile("qwen3-8b")
    cached = locations.hub_cache_dir() / "models--a--x-GGUF" / "snapshots" / ("a" * 40) / "x-Q8_0.gguf"
    put(cached)
    put(home / ".lmstudio/models/a/x-GGUF/x-Q8_0.gguf")
    assert locate_reference("a/x-GGUF:Q8_0") == Repo("a/x-GGUF", "Q8_0")
    with pytest.raises(UsageError, match="cannot read the reference"):
        locate_reference("what is this?", folders)


def test_a_name_of_the_catalog_is_no_name_of_a_file(home: Path) -> None:
    path = put(home / "models" / "qwen3-8b.gguf")
    folders = [str(home / "models")]
    (found,) = list_library(folders)
    assert locate_reference(found.name, folders) == File(path)


def test_a_mistyped_name_gets_the_nearest(home: Path) -> None:
    put_in_ollama(home, "registry.ollama.ai/library/llama3.2/3b", "1")
    with pytest.raises(UsageError, match="unknown target") as caught:
        locate_reference("llama3.2:3n")
    assert caught.value.hint == "did you mean `llama3.2:3b`?"
    assert locate_reference("nothing-like-it") == Profile("nothing-like-it")


def test_they_are_listed_and_never_removed(home: Path) -> None:
    put_in_ollama(home, "registry.ollama.ai/library/llama3.2/3b", "1")
    put(home / ".lmstudio/models/a/x-GGUF/x-Q8_0.gguf")
    entries = list_all_models(locations.hub_cache_dir())
    rows = "\n".join(entry_table(entries, now=0.0, width=79))
    assert "llama3.2:3b" in rows and "llama, Ollama" in rows and "llama, LM Studio" in rows
    for name in ("llama3.2:3b", "x-Q8_0"):
        with pytest.raises((UsageError, ModelFileError), match=r"is a model of (Ollama|LM Studio)"):
            find_removal(name)


def test_choices_and_names_for_completion(home: Path) -> None:
    put(home / "models" / "Mine-Q8_0.gguf")
    put(home / "models" / "broken.gguf").write_bytes(b"GGUF")
    folders = [str(home / "models")]
    assert [entry.reference for entry in list_choices(folders)] == ["Mine-Q8_0", "demo@native"]
    assert list_names(folders) == ["broken", "Mine-Q8_0", "demo", "demo@native"]
