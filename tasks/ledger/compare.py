"""Two pipeline runs side by side: only what differs, by where it is on record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.verdict import BadInput

if TYPE_CHECKING:
    from mlflow import MlflowClient

Differences = dict[str, tuple[Any, Any]]

# Section to the stage and the artifact that it is read from.
_ARTIFACTS = {
    "environment": ("environment", "environment.json"),
    "serving environment": ("environment", "environment-serving.json"),
    "wiring record": ("export", "wiring.json"),
    "plain launch": ("benchmark", "launch/plain.json"),
    "choice of the benchmark": ("benchmark", "benchmark.json"),
}
# What differs between any two runs: addresses, identities, times, what was free.
_LIVE = (
    *("startup_time", "internal_states", "weight_version", "kv_events", "pid", "port", "command"),
    *("seconds", "memory_available", "disk_free"),
)


def compare(client: MlflowClient, one: str, other: str) -> dict[str, Differences]:
    """Section to {key: (value of `one`, value of `other`)}; a key that a run lacks has None.

    Raises BadInput for an id that is no run.
    """
    runs = [_run(client, run_id) for run_id in (one, other)]
    sections: dict[str, Differences] = {
        "verdict": _differences(
            *({name: run.data.tags.get(f"draftproof.{name}") for name in ("verdict", "kind", "stage")} for run in runs)
        ),
        "configuration": _differences(*(run.data.params for run in runs)),
        # Names with a slash say once more, for MLflow's charts, what others say.
        "figures": _differences(*({name: value for name, value in run.data.metrics.items() if "/" not in name} for run in runs)),
    }
    children = [_children(client, run) for run in runs]
    for section, (stage, artifact) in _ARTIFACTS.items():
        sections[section] = _differences(*(_flat(_read(client, stages.get(stage), artifact)) for stages in children))
    return sections


def _run(client: MlflowClient, run_id: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        raise BadInput(run_id, found="no such run in the ledger", expected="the id of a run", do="See draftproof history.") from error


def _children(client: MlflowClient, run: Any) -> dict[str, str]:
    """Stage to the id of its run."""
    found = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    return {child.info.run_name: child.info.run_id for child in found}


def _read(client: MlflowClient, run_id: str | None, artifact: str) -> Any:
    """A JSON artifact, or an empty mapping where there is none."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from mlflow.exceptions import MlflowException

    if run_id is None:
        return {}
    with TemporaryDirectory() as folder:
        try:
            return json.loads(Path(client.download_artifacts(run_id, artifact, folder)).read_text(encoding="utf-8"))
        except (MlflowException, OSError, ValueError):
            return {}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Differences:
    return {key: (one.get(key), other.get(key)) for key in sorted({*one, *other}) if one.get(key) != other.get(key)}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys; what is different in every run is left out."""
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        value = {str(index): part for index, part in enumerate(value)}
    if not isinstance(value, Mapping):
        return {prefix.rstrip("."): value}
    found: dict[str, Any] = {}
    for key, part in value.items():
        if key not in _LIVE:
            found |= _flat(part, f"{prefix}{key}.")
    return found
