"""Models and data of a recipe, from the hub to the root: jobs run where no hub can be reached.

Each lies under its commit in the cache that `offline.environment` names to jobs. What is there whole is not asked for
again; a branch such as `main` is, because it may have moved.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError, RlsweepError
from rlsweep.launch import offline
from rlsweep.launch.submit import require_own
from rlsweep.model.hub import Kind, check_name, local_path, staged, weight_files
from rlsweep.recipe.model import TOKENIZER_FILES, Embedded
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.recipe.text import scalar_text
from rlsweep.store.files import disk_fault, read_json, write_json
from rlsweep.store.layout import Root

_SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""What configures a model and its tokenizer. Never .py: code that comes with a model is not run."""

_MARGIN = 1_000_000_000
"""Bytes that stay free on the disk."""


@dataclass(frozen=True)
class Staged:
    """A model or a data set that jobs can use."""

    field: str
    """Where the recipe names it: `model.path` or `task.dataset`."""
    name: str
    revision: str | None
    """As the recipe asks for it, None for what is no repository of a hub."""
    commit: str | None
    folder: str
    files: int
    bytes: int
    how: str
    """`fetched`, `there already`, `a local folder`, ..."""

    @property
    def pin(self) -> str | None:
        """What the recipe should say instead of a revision that moves."""
        if self.commit is None or self.commit == self.revision:
            return None
        return f"{self.field.split('.')[0]}.revision: {scalar_text(self.commit)}"


def fetch(recipe: Recipe, root: Root, say: Callable[[str], None]) -> list[Staged]:
    """Stage what a recipe needs, and see that it loads without a network. Can be repeated and interrupted at any time.

    RecipeError for what doesn't exist, RlsweepError for what can't be had (gated, no network, full disk) or read.
    UsageError where the root is another user's.
    """
    require_own(root)
    found = []
    if not isinstance(recipe.model, Embedded):
        found.append(_stage("model", "model.path", recipe.model.path, recipe.model.revision, root, say))
    if not isinstance(recipe.task, Registers):
        found.append(_stage("dataset", "task.dataset", recipe.task.dataset, recipe.task.revision, root, say))
    embedded = isinstance(recipe.model, Embedded)
    say("making the embedded model, and loading it" if embedded else "loading it without the hub")
    loaded = load_offline(recipe, root)
    if embedded:
        folder = Path(loaded["model"]["folder"])
        found.insert(0, Staged("model.type", "embedded", None, None, str(folder), *_extent(folder), "made once"))
    return found


def needed(kind: Kind, files: Mapping[str, int]) -> list[str]:
    """Of a repository's files those that are used, the weights of a model left out: all of a data set's, and of a
    model's the ones at the top that configure it, or the tokenizer's templates."""
    if kind == "dataset":
        return sorted(files)
    return sorted(
        name
        for name in files
        if name.endswith(_SMALL) and ("/" not in name or name.startswith("additional_chat_templates/"))
    )


def _stage(kind: Kind, field: str, name: str, revision: str, root: Root, say: Callable[[str], None]) -> Staged:
    local = local_path(name)
    if local is not None:
        _check_local(kind, field, local)
        return Staged(field, name, None, None, str(local.absolute()), *_extent(local), "local")
    check_name(name, field)
    cache = offline.hub(root.path)
    there = _there(cache, kind, name, revision)
    if there is None:
        say(f"asking for {kind} {name} at {revision}")
        if not sys.stderr.isatty():
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when huggingface_hub is imported
        with _telling(kind, field, name, revision, cache):
            commit, files, how = _download(kind, name, revision, cache)
    else:
        commit, files, how = revision, there, "there already"
    folder = staged(name, commit, kind, cache)
    assert folder is not None, "it was put there"
    return Staged(field, name, revision, commit, str(folder), len(files), sum(files.values()), how)


def _download(kind: Kind, name: str, revision: str, cache: Path) -> tuple[str, dict[str, int], str]:
    """Commit that a revision stands for now, files of it that are there now with their sizes, how they came there."""
    from huggingface_hub import HfApi, snapshot_download

    def get(names: list[str], at: str) -> Path:
        """Each file once: what the cache holds at a commit isn't asked for again."""
        _check_room(cache, kind, name, commit, {each: sizes.get(each, 0) for each in names})
        patterns = [glob.escape(each) for each in names]
        return Path(snapshot_download(name, revision=at, repo_type=kind, cache_dir=cache, allow_patterns=patterns))

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    info = ask(name, revision=revision, files_metadata=True)
    commit, sizes = str(info.sha), {each.rfilename: each.size or 0 for each in info.siblings or ()}
    there = _there(cache, kind, name, commit)
    names = needed(kind, sizes)
    if kind == "model":
        names += weight_files(get(names, commit), sizes)
    folder = get(names, revision)  # under the name that the recipe has, which must lead to this commit
    if folder.name != commit:
        raise RlsweepError(f"'{name}' at {revision} moved while it was fetched; call again")
    files = {each: (folder / each).stat().st_size for each in names}
    note = _note(cache, kind, name, commit)
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, files)
    return commit, files, "there already" if there == files else "fetched"


def _note(cache: Path, kind: Kind, name: str, commit: str) -> Path:
    """What was fetched of a commit: the sizes of its files, by name."""
    return cache.parent / "fetched" / f"{kind}s--{name.replace('/', '--')}--{commit}.json"


def _there(cache: Path, kind: Kind, name: str, commit: str) -> dict[str, int] | None:
    """Files of a commit with their sizes, None unless all that was fetched once is there, whole."""
    folder = staged(name, commit, kind, cache)
    if folder is None or folder.name != commit:
        return None
    try:
        files: dict[str, int] = read_json(_note(cache, kind, name, commit))
        return files if all((folder / each).stat().st_size == size for each, size in files.items()) else None
    except FileNotFoundError:
        return None


def _check_room(cache: Path, kind: Kind, name: str, commit: str, sizes: Mapping[str, int]) -> None:
    """RlsweepError where the disk hasn't the room for the files that are not there yet."""
    folder = staged(name, commit, kind, cache)
    missing = sum(size for each, size in sizes.items() if folder is None or not (folder / each).exists())
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if missing + (_MARGIN if missing > _MARGIN else 0) > free:
        raise RlsweepError(
            f"{kind} {name} needs {missing / 1e9:.1f} GB more, and {cache} has {free / 1e9:.1f} GB free; free some, or "
            "choose another root"
        )


def _check_local(kind: Kind, field: str, path: Path) -> None:
    if not path.exists():
        raise RecipeError(f"{field}: {path}: no such file or folder")
    if kind == "dataset":
        return
    for names in (("config.json",), TOKENIZER_FILES):
        if not any((path / name).is_file() for name in names):
            raise RecipeError(f"{field}: {path} holds no model: {' or '.join(names)} is missing")


def _extent(path: Path) -> tuple[int, int]:
    """Number of files, and their bytes."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return len(files), sum(each.stat().st_size for each in files)


def load_offline(recipe: Recipe, root: Root) -> dict[str, Any]:
    """What a process without a network finds of a recipe's model and data, as `rlsweep.train.probe --load` tells it.

    An embedded model is made if it is not there. RlsweepError with the process's own words where something is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(dump(recipe), encoding="utf-8")
        command = [sys.executable, "-m", "rlsweep.train.probe", "--load", str(path), str(root.path)]
        environment = {**os.environ, **offline.environment(root.path)}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RlsweepError(f"what was fetched can't be loaded: {said[-1].removeprefix('rlsweep: ')}")
    loaded: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return loaded


@contextmanager
def _telling(kind: Kind, field: str, name: str, revision: str, cache: Path) -> Iterator[None]:
    """Say in one message what went wrong. A token is never part of it, nor the hub's address, which may hold one."""
    from huggingface_hub import errors, get_token

    try:
        yield
    except RlsweepError as error:
        raise type(error)(f"{field}: {error}") from None
    except errors.GatedRepoError:
        asked = "the token of this shell was not let in" if get_token() else "no token is set (HF_TOKEN)"
        raise RlsweepError(
            f"{field}: '{name}' is gated and {asked}: accept its terms on its page, and call with the account's token"
        ) from None
    except errors.RepositoryNotFoundError:
        seen = "with the token of this shell" if get_token() else "without a token (HF_TOKEN)"
        raise RecipeError(f"{field}: there is no {kind} '{name}' on the hub, or it can't be seen {seen}") from None
    except errors.RevisionNotFoundError:
        raise RecipeError(
            f"{field.split('.')[0]}.revision: '{name}' has no revision {revision!r}; a branch, a tag or a commit is one"
        ) from None
    except errors.OfflineModeIsEnabled:
        raise RlsweepError(
            f"{field}: HF_HUB_OFFLINE is set in this shell, so '{name}' can't be asked for; call with HF_HUB_OFFLINE=0"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        hint = ": is the token in HF_TOKEN valid?" if status == 401 else "; try again later"
        raise RlsweepError(f"{field}: the hub answered {status} when asked for '{name}'{hint}") from None
    except Exception as error:
        fault = disk_fault(error)
        if fault is not None:
            raise RlsweepError(f"{field}: '{name}' could not be written to {cache}: {fault}") from None
        if not _of_the_network(error):
            raise
        raise RlsweepError(
            f"{field}: the hub can't be reached for '{name}' ({type(error).__name__}): fetch where there is a network, "
            "such as on the login node; HTTPS_PROXY and HF_ENDPOINT are heeded"
        ) from None


def _of_the_network(error: BaseException | None) -> bool:
    """Whether a library that speaks HTTP raised it, or it was raised because of one that did."""
    while error is not None:
        package = type(error).__module__.split(".")[0]
        if package.startswith(("httpx", "httpcore", "requests", "urllib3")) or isinstance(error, ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False
