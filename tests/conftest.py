"""Fixtures that several test folders share. Models are built once per session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.verify.targets import PlainTarget

# No test may reach a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
# Threads that wait sleep instead of spinning: where several processes share two cores, tiny products otherwise crawl.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


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


@pytest.fixture(scope="session")
def plain_target(fitted_target: Path) -> PlainTarget:
    """The fitted target, loaded for the proof."""
    from tests.verify.targets import PlainTarget

    return PlainTarget(fitted_target)


@pytest.fixture(scope="session")
def fitted_draft(tmp_path_factory: pytest.TempPathFactory, fitted_target: Path) -> Path:
    """A drafter fitted to the fitted target, in SGLang's form, with its record and probes."""
    from tests.verify.fitted import fitted_drafter

    return fitted_drafter(tmp_path_factory.mktemp("fitted_draft"), fitted_target)
