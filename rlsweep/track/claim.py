"""One sync at a time: the folder `<root>/mlflow.sync` belongs to the process it names."""

from contextlib import AbstractContextManager
from pathlib import Path

from rlsweep.store import claim
from rlsweep.store.claim import Claim

__all__ = ["Claim", "claimed"]


def claimed(root: Path) -> AbstractContextManager[Claim | None]:
    """The claim on a root's MLflow store, None where another process has it. Given up at the end."""
    return claim.claimed(root / "mlflow.sync")
