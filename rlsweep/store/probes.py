"""Probes: what a short job, started as runs' jobs are, found on each node. `probes/<token>` under the root.

The submitter writes `request.json`, each node `node-<rank>.json`. The nodes try each other in `start-<n>`, a folder a
start of the job.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from rlsweep.errors import RlsweepError
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import Root

_MARK = "rlsweep-finding: "

Verdict = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    verdict: Verdict
    text: str
    """What was found and, unless it is ok, what to do."""


@dataclass(frozen=True)
class Request:
    """What a job of the profile gets on each node, and what runs expect there."""

    nodes: int
    devices: int
    """Accelerators a node; 0: runs compute on CPUs."""
    cpus: int | None
    memory_gb: float | None
    engine: str | None
    """What samples rollouts; None where no recipe was named."""
    host: str
    """Of the submitter."""
    version: str
    code: str
    """Hash of the submitter's package."""


@dataclass(frozen=True)
class Report:
    """What a node found so far."""

    rank: int
    node: str
    """As Slurm names it."""
    host: str
    findings: tuple[Finding, ...]
    pending: tuple[str, ...]
    """Checks that are still to come; the first of them is at work."""


@dataclass(frozen=True)
class ProbeFolder:
    """`probes/<token>`."""

    path: Path

    @property
    def root(self) -> Root:
        return Root(self.path.parent.parent)

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def recipe(self) -> Path:
        """The resolved recipe whose model and data are to be loaded; absent where none was named."""
        return self.path / "recipe.yaml"

    @property
    def jobs(self) -> Path:
        """What submitit and Slurm write."""
        return self.path / "job"

    def node(self, rank: int) -> Path:
        return self.path / f"node-{rank}.json"

    def start(self, number: int) -> Path:
        """Where the nodes try each other, in the start of the job with this number."""
        return self.path / f"start-{number}"


def probe_folder(root: Root, token: str) -> ProbeFolder:
    """Folder of a probe, made or not."""
    return ProbeFolder(root.path / "probes" / token)


def write_request(folder: ProbeFolder, request: Request) -> None:
    write_json(folder.request, asdict(request))


def read_request(folder: ProbeFolder) -> Request:
    """RlsweepError where it is damaged, FileNotFoundError where the folder can't be seen."""
    try:
        return Request(**read_json(folder.request))
    except TypeError as error:
        raise RlsweepError(f"{folder.request}: not a probe's request ({error})") from error


def write_report(folder: ProbeFolder, report: Report) -> None:
    write_json(folder.node(report.rank), asdict(report))


def read_report(folder: ProbeFolder, rank: int) -> Report | None:
    """What a node found so far, None where it has not reported. RlsweepError where that is damaged."""
    try:
        found = read_json(folder.node(rank))
        findings = tuple(Finding(**each) for each in found.pop("findings"))
        return Report(**{**found, "findings": findings, "pending": tuple(found["pending"])})
    except FileNotFoundError:
        return None
    except (TypeError, KeyError, AttributeError) as error:
        raise RlsweepError(f"{folder.node(rank)}: not a node's report ({error})") from error


def as_line(finding: Finding) -> str:
    """A finding as a line of a log, for where the folder can't be written to."""
    return f"{_MARK}{json.dumps(asdict(finding), ensure_ascii=False)}"


def from_lines(lines: Iterable[str]) -> list[Finding]:
    """Findings among the lines of a log."""
    found = []
    for line in lines:
        if line.startswith(_MARK):
            with suppress(ValueError, TypeError):  # cut off
                found.append(Finding(**json.loads(line.removeprefix(_MARK))))
    return found


@cache
def code_hash() -> str:
    """SHA-256, shortened, over names and contents of this package's source files: which code this process runs."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(json.dumps([file.relative_to(package).as_posix(), content]).encode())
    return digest.hexdigest()[:12]
