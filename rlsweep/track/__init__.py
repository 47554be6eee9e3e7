"""Journals to MLflow: an index of the run folders that can be deleted and made again from them."""

from rlsweep.track.sync import SyncResult, sync
from rlsweep.track.where import TrackingError

__all__ = ["SyncResult", "TrackingError", "sync"]
