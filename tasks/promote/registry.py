"""MLflow's registry: versions that say what serves them, and the aliases `champion` and `challenger`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config import DeployConfig, PromoteConfig, TargetConfig
from tasks.products import drafter_files
from tasks.promote.gates import CHAMPION_GATE, VERSION
from tasks.promote.records import Alias, DataSource, Promotion, Release
from tasks.store import Store, home, locked, sha256_folder
from tasks.verdict import BadInput, Check, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_TAG = "draftproof."
_MODELS = "models:/"  # MLflow's scheme of a LoggedModel's files


def register(client: MlflowClient, *, experiment: str, run_id: str, release: Release, verdict: Verdict) -> Promotion:
    """See `tasks.promote.promote`."""
    names = drafter_files(release.drafter)
    files_sha256 = sha256_folder(release.drafter, names)
    with locked(home() / "registry.lock"):
        _ensure_model(client, release)
        previous = _by_alias(client, release.model, "champion")
        changed = _changed_meanwhile(verdict, previous)
        verdict = verdict.also(changed)
        alias: Alias = "challenger" if verdict.verdict.exit_status else "champion"
        uploaded = _uploaded(client, release.model, files_sha256) or _upload(client, experiment, run_id, release, names)
        _attach_data(client, run_id, release.data)
        _attach_figures(client, run_id, uploaded, release.data)
        tags = _tags(release, verdict, files_sha256, previous.version if previous else None)
        with _named_in_environment(client.tracking_uri):
            version = client.create_model_version(
                release.model,
                source=_MODELS + uploaded,
                model_id=uploaded,
                run_id=run_id,
                tags=tags,
                description=f"**{verdict.verdict}** {verdict.message}",
            )
        # Last: until here nothing that serves has changed.
        client.set_registered_model_alias(release.model, alias, version.version)
    if changed:
        raise ProofFailed(verdict)
    return _promotion(version, alias)


def _changed_meanwhile(verdict: Verdict, champion: ModelVersion | None) -> list[Check]:
    """A check that fails where a pass was measured beside somebody else than who is champion now; else none."""
    now = str(champion.version) if champion else None
    then = [check.numbers[VERSION] for check in verdict.checks if check.name == CHAMPION_GATE and VERSION in check.numbers]
    if verdict.verdict.exit_status or not then or then == [now]:
        return []
    message = f"the champion was version {then[0]} when this was measured, and is version {now} now: run again, to measure them together"
    numbers = {"then": then[0], "now": now}
    return [Check(name="the same champion", verdict=Outcome.INVALID, kind=Kind.INVALID_MEASUREMENT, message=message, numbers=numbers)]


def find(client: MlflowClient, model: str, alias: str) -> tuple[Release, Promotion]:
    """See `tasks.promote.find_release`."""
    version = _by_alias(client, model, alias)
    if version is None:
        raise BadInput(
            f"{model}@{alias}",
            found="no such model or alias in the registry",
            expected="a model that was promoted",
            do="Run the pipeline first (draftproof run CONFIG), and mind MLFLOW_TRACKING_URI and DRAFTPROOF_HOME.",
        )
    try:
        promotion = _promotion(version, "champion" if alias == "champion" else "challenger")
        release = _release(model, version.tags)
    except (KeyError, ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
        raise _not_ours(version, error) from error
    return release.model_copy(update={"drafter": _fetched(client, version, promotion.files_sha256)}), promotion


def _release(model: str, tags: Mapping[str, str]) -> Release:
    """What the tags of a version say; where its files will lie is not known yet."""
    return Release(
        model=model,
        drafter=Path(),
        target=TargetConfig.model_validate_json(tags[_TAG + "target"]),
        target_sha256=tags[_TAG + "target_sha256"],
        deploy=DeployConfig.model_validate_json(tags[_TAG + "deploy"]),
        steps=json.loads(tags[_TAG + "steps"]),
        by_concurrency=json.loads(tags.get(_TAG + "by_concurrency", "{}")),
        stops_paying=json.loads(tags.get(_TAG + "stops_paying", "null")),
    )


def opponent(
    client: MlflowClient, config: PromoteConfig, model: str, *, drafter: Path, target_sha256: str
) -> tuple[Release, Promotion] | Check:
    """See `tasks.promote.find_opponent`."""

    version = _by_alias(client, model, "champion")

    def none(why: str) -> Check:
        numbers = {VERSION: str(version.version) if version else None}
        return Check(name=CHAMPION_GATE, verdict=Outcome.PASS, message=f"no champion was measured: {why}", numbers=numbers)

    if config.min_over_champion is None:
        return none("promote.min_over_champion is null").model_copy(update={"numbers": {}})
    if version is None:
        return none(f"{model} has none yet")
    try:
        its_target, its_files = (version.tags[_TAG + name] for name in ("target_sha256", "files_sha256"))
    except KeyError as error:
        raise _not_ours(version, error) from error
    if its_target != target_sha256:
        return none(f"version {version.version} drafts for another target, {its_target[:16]}… (this one is {target_sha256[:16]}…)")
    if its_files == sha256_folder(drafter, drafter_files(drafter)):
        return none(f"version {version.version} is the same drafter, byte for byte")
    return find(client, model, "champion")


def files_of_versions(client: MlflowClient) -> set[str]:
    """See `tasks.promote.served_files`."""
    found: set[str] = set()
    token = None
    while True:
        page = client.search_model_versions(page_token=token)
        found |= {version.tags[_TAG + "files_sha256"] for version in page if _TAG + "files_sha256" in version.tags}
        token = page.token
        if not token:
            return found


def roll_back(client: MlflowClient, model: str, *, by: str, why: str) -> tuple[Promotion, Promotion]:
    """See `tasks.promote.rollback`."""
    with locked(home() / "registry.lock"):
        version = _by_alias(client, model, "champion")
        if version is None:
            raise BadInput(model, found="no champion", expected="a model with a champion", do="See draftproof history.")
        left = _promotion(version, "champion")
        if left.previous_champion is None:
            raise BadInput(
                f"{model} version {left.version}",
                found="no champion before it",
                expected="one to go back to",
                do="Promote another drafter.",
            )
        now = _promotion(_version(client, model, left.previous_champion), "champion")
        note = json.dumps({"from": left.version, "to": now.version, "by": by, "why": why, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        for each in (left, now):
            client.set_model_version_tag(model, each.version, _TAG + "rolled_back", note)
        client.set_registered_model_alias(model, "champion", now.version)
    return left, now


def _version(client: MlflowClient, model: str, version: str) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(model, version)
    except MlflowException as error:
        raise BadInput(
            f"{model} version {version}", found="deleted", expected="the champion before", do="Promote another drafter."
        ) from error


@contextmanager
def _named_in_environment(uri: str) -> Iterator[None]:
    """MLflow resolves a `models:/` source by a client of the environment's store, whatever store it was asked in
    (mlflow 3.17.2: create_model_version in store/model_registry/sqlalchemy_store.py; download_artifacts)."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    os.environ["MLFLOW_TRACKING_URI"] = uri
    try:
        yield
    finally:
        if before is None:
            del os.environ["MLFLOW_TRACKING_URI"]
        else:
            os.environ["MLFLOW_TRACKING_URI"] = before


def _tags(release: Release, verdict: Verdict, files_sha256: str, previous: str | None) -> dict[str, str]:
    values: Mapping[str, Any] = {
        "verdict": verdict.verdict,
        "kind": verdict.kind or "",
        "stage": verdict.stage,
        "reason": verdict.message,
        "files_sha256": files_sha256,
        "target": release.target.model_dump_json(),
        "target_sha256": release.target_sha256,
        "deploy": release.deploy.model_dump_json(),
        "steps": json.dumps(release.steps),
        "by_concurrency": json.dumps(release.by_concurrency),
        "stops_paying": json.dumps(release.stops_paying),
        "previous_champion": previous or "",
    }
    return {_TAG + name: str(value) for name, value in values.items()}


def _promotion(version: ModelVersion, alias: Alias) -> Promotion:
    try:
        return Promotion(
            model=version.name,
            version=str(version.version),
            alias=alias,
            files_sha256=version.tags[_TAG + "files_sha256"],
            reason=version.tags[_TAG + "reason"],
            previous_champion=version.tags[_TAG + "previous_champion"] or None,
        )
    except KeyError as error:
        raise _not_ours(version, error) from error


def _not_ours(version: ModelVersion, error: Exception) -> BadInput:
    return BadInput(
        f"{version.name} version {version.version}",
        found=f"tags that are not ours ({type(error).__name__}: {error})",
        expected="those of a promotion",
        do="Somebody changed them: promote anew.",
    )


def _ensure_model(client: MlflowClient, release: Release) -> None:
    if not client.search_registered_models(f"name = '{release.model}'"):
        client.create_registered_model(release.model, description=f"EAGLE-3 drafters of {release.target.name}, proved by Draftproof.")


def _by_alias(client: MlflowClient, model: str, alias: str) -> ModelVersion | None:
    """A search shows no aliases (mlflow 3.17.2): asked for by alias."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(model, alias)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _uploaded(client: MlflowClient, model: str, files_sha256: str) -> str | None:
    """The LoggedModel of an earlier version with the same files: a second run with nothing changed uploads nothing."""
    same = [v for v in client.search_model_versions(f"name = '{model}'") if v.tags.get(_TAG + "files_sha256") == files_sha256]
    return str(same[0].source).removeprefix(_MODELS) if same else None


def _upload(client: MlflowClient, experiment: str, run_id: str, release: Release, names: list[str]) -> str:
    """The id of a LoggedModel with the drafter's files. The registry refuses a local path outside of the run as a source."""
    model = client.create_logged_model(experiment, name=release.model, source_run_id=run_id, model_type="eagle3")
    for name in names:
        folder = str(Path(name).parent) if "/" in name else None
        client.log_model_artifact(model.model_id, str(release.drafter / name), folder)
    client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def _attach_data(client: MlflowClient, run_id: str, data: Sequence[DataSource]) -> None:
    """The run's inputs as MLflow's datasets, by path and hash."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    def dataset(source: DataSource) -> Dataset:
        where = json.dumps({"uri": str(source.path), "sha256": source.sha256})
        return Dataset(source.name, _digest(source), source_type="local", source=where)

    client.log_inputs(run_id, [DatasetInput(dataset(source), [InputTag("mlflow.data.context", source.use)]) for source in data])


def _attach_figures(client: MlflowClient, run_id: str, model_id: str, data: Sequence[DataSource]) -> None:
    """The run's figures, on the LoggedModel too: there they are compared from drafter to drafter, each with its data."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)

    def metric(name: str, value: float) -> Metric:
        use = "evaluation" if name.startswith("bench.") or name == "verify.accept_length" else "training"
        on = next((each for each in data if each.use == use), None)
        named = {"dataset_name": on.name, "dataset_digest": _digest(on)} if on else {}
        return Metric(name, value, now, 0, model_id=model_id, **named)

    client.log_batch(run_id, metrics=[metric(name, value) for name, value in client.get_run(run_id).data.metrics.items()])


def _digest(source: DataSource) -> str:
    """MLflow 3.17.2 holds 36 characters (MAX_DATASET_DIGEST_SIZE in utils/validation.py); the whole hash is in the source."""
    return source.sha256[:36]


def _fetched(client: MlflowClient, version: ModelVersion, files_sha256: str) -> Path:
    """The files of a version, fetched once. They are checked against the promoted hash then, and by the store on each later use."""
    from mlflow.artifacts import download_artifacts

    def fetch(partial: Path) -> dict[str, Any]:
        folder = partial / "drafter"
        with _named_in_environment(client.tracking_uri):
            download_artifacts(artifact_uri=version.source, dst_path=str(folder))
        found = sha256_folder(folder, drafter_files(folder))
        if found != files_sha256:
            shutil.rmtree(partial)
            raise BadInput(
                f"{version.name} version {version.version}",
                found=f"files with SHA-256 {found} in {version.source}",
                expected=f"the promoted {files_sha256}",
                do="Somebody changed them: promote anew.",
            )
        return {"folder": "drafter"}

    store = Store()
    return store.folder("release", files_sha256) / str(store.make("release", files_sha256, fetch)["folder"])
