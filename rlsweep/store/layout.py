"""Where everything lies under one root; readable without rlsweep."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from rlsweep.errors import UsageError

DEFAULT_ROOT = "rlsweep-out"


@dataclass(frozen=True)
class RunFolder:
    """`runs/<run_key>`: all that is known of one run."""

    path: Path

    @property
    def key(self) -> str:
        return self.path.name

    @property
    def recipe(self) -> Path:
        """The resolved recipe, frozen when the run is first submitted; only budget and execution may change."""
        return self.path / "recipe.yaml"

    @property
    def provenance(self) -> Path:
        """Code, packages, host and devices of the newest attempt."""
        return self.path / "provenance.json"

    @property
    def journal(self) -> Path:
        """The run's metrics, one row a line."""
        return self.path / "metrics.jsonl"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def outcome(self) -> Path:
        """How the newest attempt that came to an end ended."""
        return self.path / "outcome.json"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def submission(self) -> Path:
        """Which job of a scheduler the run was last handed to."""
        return self.path / "submission.json"


@dataclass(frozen=True)
class SweepFolder:
    """`sweeps/<name>`: what is wanted, and the reports about it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        """The description that makes the sweep again."""
        return self.path / "sweep.yaml"

    @property
    def ledger(self) -> Path:
        """Intents and submissions, appended by the submitter alone."""
        return self.path / "ledger.jsonl"

    @property
    def reports(self) -> Path:
        return self.path / "reports"

    @property
    def jobs(self) -> Path:
        """What submitit and Slurm write about jobs: a folder a submission, named by its token."""
        return self.path / "jobs"


@dataclass(frozen=True)
class Root:
    """The folder everything is under."""

    path: Path

    @property
    def sweeps(self) -> Path:
        return self.path / "sweeps"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def models(self) -> Path:
        """Embedded models, by a hash of all that makes them."""
        return self.path / "models"

    @property
    def option(self) -> str:
        """What a command needs behind it to mean this root: ` --root ...`, nothing where it is the one meant anyway."""
        return "" if find_root(None) == self else f" --root {shlex.quote(str(self.path))}"

    def sweep(self, name: str) -> SweepFolder:
        """Folder of a sweep, made or not. UsageError where the name can't be the name of a folder."""
        if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > 200:
            raise UsageError(
                f"{name!r} can't name a sweep: a name is printable, at most 200 bytes long, "
                "has no slash and doesn't begin with a dot"
            )
        return SweepFolder(self.sweeps / name)

    def run(self, key: str) -> RunFolder:
        return RunFolder(self.runs / key)

    def all_sweeps(self) -> list[SweepFolder]:
        """Sweeps that have a ledger, the one that was worked on last at the end."""
        ledgers = [(folder / "ledger.jsonl", folder) for folder in _folders(self.sweeps)]
        dated = [(ledger.stat().st_mtime_ns, folder.name, folder) for ledger, folder in ledgers if ledger.is_file()]
        return [SweepFolder(folder) for _, _, folder in sorted(dated)]


def find_root(option: str | None) -> Root:
    """The root meant by `--root`, else by RLSWEEP_ROOT, else ./rlsweep-out. Absolute; not made.

    UsageError where its path isn't UTF-8: neither safetensors nor SQLite opens such a file.
    """
    chosen = option or os.environ.get("RLSWEEP_ROOT") or DEFAULT_ROOT
    path = Path(chosen).expanduser().absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the root {str(path)!r} can't be used: its path is not UTF-8; choose another") from error
    return Root(path)


def _folders(path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_dir()]
    except FileNotFoundError:
        return []
