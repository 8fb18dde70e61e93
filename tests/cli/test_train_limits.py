"""What `train` refuses before it asks the target anything, which files it leaves, and which answers it reuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from doubles.random_models import TargetShape, write_target

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.cli import train_options
from eaglelocal.cli.import_head import find_head_target
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output
from eaglelocal.errors import ResourceError
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.preparation import machines
from eaglelocal.training.draft_head import HeadSource

MIB = 2**20


def options_for(folder: Path) -> train_options.TrainOptions:
    path = write_target(folder / "t.gguf", TargetShape(n_layer=5, n_vocab=4000))
    settings, output = load_settings({"target": str(path)}), standard_output(colour="never")
    found = find_head_target(settings, output)
    source = HeadSource(found.info)
    return train_options.TrainOptions(
        found,
        source,
        None,
        settings,
        output,
        folder / "work",
        "cpu",
        folder / "head.gguf",
        False,
        "bf16",
        None,
    )


def machine_with(free_bytes: int) -> MachineSpec:
    here = machines.this_machine(load_catalog())
    return replace(here, host=replace(here.host, free_bytes=free_bytes))


def test_too_little_memory_is_reported_before_any_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_for(tmp_path)
    little, plenty = machine_with(700 * MIB), machine_with(4000 * MIB)
    monkeypatch.setattr(machines, "this_machine", lambda catalog: plenty)
    train_options.check_resources(options)
    monkeypatch.setattr(machines, "this_machine", lambda catalog: little)
    with pytest.raises(ResourceError, match=r"training needs .* for the target, but only 188 MiB can be used in RAM"):
        train_options.check_resources(options)
