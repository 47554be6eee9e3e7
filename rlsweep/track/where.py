"""Which MLflow store a root is tracked in, and what may be shown of its address."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlsweep.errors import RlsweepError

_NETWORK = re.compile(
    "nfs[34]?|lustre|gpfs|beegfs|cifs|smb[23]?|smbfs|ceph|9p|afs|orangefs|pvfs2|panfs|wekafs|glusterfs|virtiofs|fuse[.].+"
)
_LOCAL_FUSE = "fuse.fuse-overlayfs"  # what rootless containers stand on
_SQLITE = "sqlite:///"
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


class TrackingError(RlsweepError):
    """MLflow can't be reached, read or written. The journals are not touched by it."""


@dataclass(frozen=True)
class Tracking:
    """An MLflow store.

    uri        its address, credentials included: never shown
    file       the SQLite file, None for a server
    artifacts  folder for the artifacts of new experiments, None where the server decides
    ours       whether this is the root's own store, not one that MLFLOW_TRACKING_URI names
    notice     what the user should know about the choice
    """

    uri: str
    file: Path | None
    artifacts: Path | None
    ours: bool
    notice: str | None = None

    @property
    def shown(self) -> str:
        """The address without user, password and query."""
        if self.file is not None:
            return self.uri
        return re.sub(r"://.*@", "://", self.uri).partition("?")[0]

    def scrub(self, text: str) -> str:
        """`text` without any credential of the address or of MLflow's variables."""
        text = re.sub(r"://[^/\s]*@", "://", text)
        secrets = [os.environ.get(name) for name in _SECRETS]
        if self.file is None:
            parts = urlsplit(self.uri)
            secrets += [parts.password, unquote(parts.password or ""), parts.query]
        for secret in secrets:
            if secret and len(secret) > 3:  # a shorter one is in every other word
                text = text.replace(secret, "***")
        return text


def locate(root: Path, environment: Mapping[str, str] = os.environ) -> Tracking:
    """The store of a root: MLFLOW_TRACKING_URI where set, else SQLite under the root, or under the user's state folder
    where the root is on a network file system (SQLite's locks don't hold there) or can't stand in an address."""
    root = root.resolve()
    uri = environment.get("MLFLOW_TRACKING_URI", "").strip()
    if uri:
        remote = urlsplit(uri).scheme in ("http", "https")
        file = None
        if uri.startswith(_SQLITE):
            file = Path(uri.removeprefix(_SQLITE).partition("?")[0]).absolute()
            uri = f"{_SQLITE}{file}"
        return Tracking(uri, file, None if remote else root / "mlartifacts", ours=False)
    why = None
    if kind := network_filesystem(root):
        why = f"{root} is on a network file system ({kind})"
    elif awkward := re.search(r"[#?%]", str(root)):
        why = f"{root} holds a {awkward[0]!r}"
    if why is None:
        return Tracking(f"{_SQLITE}{root}/mlflow.db", root / "mlflow.db", root / "mlartifacts", ours=True)
    state = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rlsweep"
    folder = state / hashlib.sha256(str(root).encode()).hexdigest()[:12]
    notice = f"{why}: its MLflow store is {folder / 'mlflow.db'}"
    if network_filesystem(folder):
        notice += ", on a network file system too; set XDG_STATE_HOME to a local folder or MLFLOW_TRACKING_URI"
    return Tracking(f"{_SQLITE}{folder}/mlflow.db", folder / "mlflow.db", folder / "mlartifacts", True, notice)


def network_filesystem(path: Path, mounts: str | None = None) -> str | None:
    """Type of the network file system that holds `path` (made or not), None where it is local or there is no /proc.

    `mounts` is the text of /proc/mounts.
    """
    if mounts is None:
        table = Path("/proc/mounts")
        mounts = table.read_text(errors="surrogateescape") if table.exists() else ""
    path = path.resolve()
    longest, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        # Of two mounts on one point the later one is seen.
        if path.is_relative_to(point) and len(point) >= longest:
            longest, kind = len(point), fields[2]
    return kind if _NETWORK.fullmatch(kind) and kind != _LOCAL_FUSE else None
