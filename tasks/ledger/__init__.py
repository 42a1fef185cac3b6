"""The ledger: every pipeline run and its stages in MLflow, closed rightly however they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.ledger.ledger import Ledger
    from tasks.ledger.runs import Run

__all__ = ["Ledger", "Run", "open_ledger"]


def open_ledger(target: str) -> Ledger:
    """The experiment `draftproof/<target>` of the store that `MLFLOW_TRACKING_URI` names, else of one in `DRAFTPROOF_HOME`.

    A fresh store is initialised under a lock, and runs that dead processes of this machine left RUNNING are closed
    as KILLED. Raises BadInput (a store of files, a deleted experiment) and MachineTrouble (a store that cannot be used).
    """
    from tasks.ledger.ledger import Ledger

    return Ledger.open(target)


def __getattr__(name: str) -> object:
    """`Ledger` and `Run`, imported when asked for: MLflow takes seconds."""
    if name == "Ledger":
        from tasks.ledger.ledger import Ledger

        return Ledger
    if name == "Run":
        from tasks.ledger.runs import Run

        return Run
    raise AttributeError(name)
