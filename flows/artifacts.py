"""What a flow run shows on its page in Prefect: the verdict, the accuracy, plain against speculative, and the way to MLflow."""

from __future__ import annotations

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.outcome import RunReport
from flows.story import accuracy, describe, versus
from tasks.ledger.store import page_of, tracking_uri
from tasks.verdict import MachineTrouble


def show(report: RunReport, *, key: str = "verdict", markdown: str | None = None) -> None:
    """Each artifact once; a table only where its figures were measured. `markdown`: in place of the run's own description."""
    link = _link(report)
    told = markdown or describe(report)
    if report.mlflow_run_id and not link:
        told += f"\n\nRun in MLflow: `{report.mlflow_run_id}`, shown by `mlflow ui --backend-store-uri {tracking_uri()}`\n"
    create_markdown_artifact(key=key, markdown=told, description="What the run proved, and its figures")
    if table := accuracy(report.metrics):
        create_table_artifact(key="accuracy", table=table, description="Held-out accuracy by draft step: every draft up to it is right")
    if table := versus(report.metrics):
        create_table_artifact(key="a-b", table=table, description="The plain against the speculative server")
    if link:
        create_link_artifact(link, link_text="The run in MLflow", key="mlflow-run")


def _link(report: RunReport) -> str | None:
    """An MLflow server that is gone by now takes the link away, not the verdict."""
    try:
        return page_of(report.mlflow_run_id) if report.mlflow_run_id else None
    except MachineTrouble:
        return None
