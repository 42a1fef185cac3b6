"""Fixtures that several test folders share. Models are built once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# No test may reach a model hub; and one thread pool per core is all that two cores carry.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny Llama folder."""
    from tests.tiny import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("tiny_target"))


@pytest.fixture(scope="session")
def fitted_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama fitted to the grammar of tests/tiny.py."""
    from tests.tiny import fitted_llama

    return fitted_llama(tmp_path_factory.mktemp("fitted_target"))


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has its own DRAFTPROOF_HOME: nothing of the developer's caches is read or written."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("DRAFTPROOF_HOME", str(home))
    return home
