"""The files for containers agree with each other and with the program; tests/measures/container.sh builds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from eaglelocal.settings import PREFIX, READERS, Settings

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "containers"
BACKENDS = ("cpu", "vulkan", "cuda")
CONTAINERFILE = (FOLDER / "Containerfile").read_text(encoding="utf-8")
STAGES = re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE)


def compose(name: str) -> dict[str, dict[str, object]]:
    content = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert set(content["services"]) == {"eaglelocal"}
    return content  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_has_its_stages(backend: str) -> None:
    assert {f"build-{backend}", f"run-{backend}"} <= set(STAGES)
    assert f"`BACKEND={backend}" in (ROOT / "docs/containers.md").read_text(encoding="utf-8") or backend == "cpu"


def test_every_stage_serves_some_backend() -> None:
    assert set(STAGES) == {f"{part}-{backend}" for part in ("build", "run") for backend in BACKENDS} | {"build"}


def test_compose_and_image_agree() -> None:
    main = compose("compose.yaml")
    service = main["services"]["eaglelocal"]
    assert isinstance(service, dict)
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    folders = [volume.split(":") for volume in service["volumes"]]
    assert {name for name, _ in folders} == set(main["volumes"])
    declared = re.search(r'^VOLUME \["(.*?)", "(.*?)"\]$', CONTAINERFILE, re.MULTILINE)
    assert declared is not None and {folder for _, folder in folders} == set(declared.groups())
    port = str(Settings().port)
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"EXPOSE {port}\n" in CONTAINERFILE and f"127.0.0.1:{port}/health" in CONTAINERFILE


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml", "compose.vulkan.yaml"])
def test_variables_are_settings(name: str) -> None:
    service = compose(name)["services"]["eaglelocal"]
    assert isinstance(service, dict)
    for variable in service.get("environment", {}):
        assert variable.removeprefix(PREFIX).lower() in READERS


def test_the_pinned_binding_is_found_as_the_image_finds_it() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r"llama-cpp-python==[0-9.]*", project)[:1] == ["llama-cpp-python==0.3.36"]
    assert "llama-cpp-python==[0-9.]*" in CONTAINERFILE
