"""Searches in MLflow to the last page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def all_experiments(client: "MlflowClient") -> list[str]:
    """Ids of the experiments that aren't deleted."""
    ids: list[str] = []
    token = None
    while True:
        page = client.search_experiments(page_token=token)
        ids += [experiment.experiment_id for experiment in page]
        token = page.token
        if not token:
            return ids


def all_runs(client: "MlflowClient", experiments: Sequence[str], where: str) -> list["Run"]:
    """Runs that a filter of MLflow's matches, the one that began first at the head."""
    runs: list[Run] = []
    token = None
    while True:
        page = client.search_runs(
            list(experiments),
            filter_string=where,
            max_results=1000,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        runs += page
        token = page.token
        if not token:
            return runs
