"""`rlsweep fetch` against a real HTTP server that answers as the hub does."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlsweep.launch.offline import environment as job_environment
from rlsweep.launch.offline import hub as cache_of
from rlsweep.store.layout import Root

FIRST, SECOND = "a1" * 20, "b2" * 20
SECRET = "hf_nobody-may-read-this"
LOAD = """
import sys
from rlsweep.model.load import load_model
model, tokenizer = load_model(*sys.argv[1:])
print(type(model).__name__, tokenizer.eos_token)
"""


@dataclass
class Hub:
    """A hub on loopback, as a test fills and reads it."""

    folder: Path
    address: str

    def put(self, kind: str, name: str, commit: str, source: Path) -> Path:
        """Have `main` of a repository be a commit with the files of a folder."""
        repository = self.folder / kind / name
        shutil.copytree(source, repository / commit)
        (repository / "main").write_text(commit)
        return repository

    def requests(self) -> list[str]:
        """All requests for files and about repositories so far."""
        log = self.folder / "requests.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if "/resolve/" in line or "/api/models/" in line or "/api/datasets/" in line]

    def downloads(self) -> list[str]:
        return sorted(line.split()[1].rpartition("/")[2] for line in self.requests() if line.startswith("GET /org/"))


@pytest.fixture
def hub(tmp_path: Path, model_folder: str) -> Iterator[Hub]:
    """With a model, more than is needed in it, and a data set; `main` is the first commit."""
    folder = tmp_path / "hub"
    folder.mkdir()
    script = Path(__file__).with_name("hub.py")
    with subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = Hub(folder, server.stdout.readline().strip())
        repository = found.put("models", "org/m", FIRST, Path(model_folder))
        for name in ("README.md", "pytorch_model.bin", "modeling_own.py"):
            (repository / FIRST / name).write_text("not needed")
        data = tmp_path / "data"
        data.mkdir()
        (data / "train.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
        found.put("datasets", "org/d", FIRST, data)
        yield found
        server.kill()


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text("scale: 8b\nloss: cispo\nmodel: {path: org/m}\ntask: {dataset: org/d}\n")
    return str(path)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "dossier à moi")


class Fetch:
    """`rlsweep fetch` as a person calls it on a login node."""

    def __init__(self, root: Root, address: str, tmp_path: Path):
        self.root = root
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "RLSWEEP"))}
        self.environment = {
            **kept,
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "home"),
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def __call__(
        self, *arguments: str, file_limit: int | None = None, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        def limit() -> None:
            if file_limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

        return subprocess.run(
            [sys.executable, "-m", "rlsweep", "fetch", *arguments, "--root", str(self.root.path)],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            preexec_fn=limit,
        )


@pytest.fixture
def fetch(root: Root, hub: Hub, tmp_path: Path) -> Fetch:
    return Fetch(root, hub.address, tmp_path)


def test_what_a_branch_stands_for_is_fetched_once_and_loads_without_a_hub(
    hub: Hub, fetch: Fetch, recipe: str, root: Root
) -> None:
    done = fetch(recipe)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(row[:3], row[5]) for row in rows] == [
        (["model.path", "org/m", FIRST], "fetched"),
        (["task.dataset", "org/d", FIRST], "fetched"),
    ]
    assert f"org/m: main moves; in the recipe, write model.revision: {FIRST}" in done.stderr
    assert f"task.revision: {FIRST}" in done.stderr
    assert "%" not in done.stderr, "no progress bars in a log"
    fetched = hub.downloads()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(fetched)
    assert not {"README.md", "pytorch_model.bin", "modeling_own.py"} & set(fetched)
    assert len(fetched) == len(set(fetched)), "nothing twice"

    again = fetch(recipe)
    assert again.returncode == 0 and again.stdout.count("there already") == 2
    assert hub.downloads() == fetched

    asked = len(hub.requests())
    job = {**fetch.environment, **job_environment(root.path)}
    for revision in ("main", FIRST):
        loaded = subprocess.run(
            [sys.executable, "-c", LOAD, "org/m", revision], env=job, capture_output=True, text=True
        )
        assert loaded.stdout.split() == ["Qwen3ForCausalLM", "<eos>"], loaded.stderr
    lacking = subprocess.run([sys.executable, "-c", LOAD, "org/m", SECOND], env=job, capture_output=True, text=True)
    assert f"'org/m' at revision {SECOND} was not fetched to {cache_of(root.path)}" in lacking.stderr
    assert len(hub.requests()) == asked, "no job has asked the hub"


def test_a_pinned_commit_that_is_there_whole_is_not_asked_for(hub: Hub, fetch: Fetch, recipe: str, root: Root) -> None:
    pins = ("--set", f"model.revision={FIRST}", "--set", f"task.revision={FIRST}")
    first = fetch(recipe, *pins)
    assert first.returncode == 0 and "moves" not in first.stderr
    asked = hub.requests()
    again = fetch(recipe, *pins, "--json")
    assert again.returncode == 0 and hub.requests() == asked
    told = json.loads(again.stdout)
    assert [(each["how"], each["commit"], each["pin"]) for each in told["fetched"]] == [
        ("there already", FIRST, None)
    ] * 2
    assert told["root"] == str(root.path)

    weights = cache_of(root.path) / "models--org--m" / "snapshots" / FIRST / "model.safetensors"
    weights.unlink()  # a cleaned scratch file system
    healed = fetch(recipe, *pins)
    assert healed.returncode == 0 and weights.exists()


def test_a_branch_that_moved_is_followed_and_only_what_changed_is_fetched(
    hub: Hub, fetch: Fetch, recipe: str, tmp_path: Path
) -> None:
    assert fetch(recipe).returncode == 0
    before = hub.downloads()
    newer = tmp_path / "newer"
    shutil.copytree(hub.folder / "models" / "org" / "m" / FIRST, newer)
    config = json.loads((newer / "config.json").read_text())
    (newer / "config.json").write_text(json.dumps({**config, "note": "newer"}))
    hub.put("models", "org/m", SECOND, newer)
    done = fetch(recipe)
    assert done.returncode == 0 and f"org/m\t{SECOND}" in done.stdout
    assert hub.downloads() == sorted([*before, "config.json"])


def test_weights_in_several_files_are_all_fetched(hub: Hub, fetch: Fetch, recipe: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source, sharded = hub.folder / "models" / "org" / "m" / FIRST, tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(source).save_pretrained(sharded, max_shard_size="100KB")
    shutil.copy(source / "tokenizer.json", sharded)
    shutil.copy(source / "tokenizer_config.json", sharded)
    shards = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert len(shards) > 2
    hub.put("models", "org/large", FIRST, sharded)
    assert fetch(recipe, "--set", "model.path=org/large").returncode == 0
    assert set(shards) <= set(hub.downloads())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--set", "model.path=org/none"],
            2,
            "model.path: there is no model 'org/none' on the hub, or it can't be seen",
        ),
        (["--set", "model.revision=dev"], 2, "model.revision: 'org/m' has no revision 'dev'"),
        (["--set", "model.path=a:b"], 2, "model.path: 'a:b' is neither a file or folder here nor the name of a hub"),
        (["--set", "task.dataset=org/none"], 2, "task.dataset: there is no dataset 'org/none' on the hub"),
    ],
)
def test_what_does_not_exist_is_told_in_one_line(
    fetch: Fetch, recipe: str, arguments: list[str], code: int, words: str
) -> None:
    done = fetch(recipe, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith(f"rlsweep: {words}")
    assert "Traceback" not in done.stderr


def test_a_gated_model_needs_a_token_which_nobody_reads_anywhere(
    hub: Hub, fetch: Fetch, recipe: str, root: Root
) -> None:
    (hub.folder / "models" / "org" / "m" / "gated").write_text(SECRET)
    without = fetch(recipe)
    assert without.returncode == 1
    assert "model.path: 'org/m' is gated and no token is set (HF_TOKEN)" in without.stderr
    wrong = fetch(recipe, HF_TOKEN=f"{SECRET}-2")
    assert wrong.returncode == 1 and "the token of this shell was not let in" in wrong.stderr
    right = fetch(recipe, HF_TOKEN=SECRET)
    assert right.returncode == 0, right.stderr
    assert any(line.endswith(SECRET) for line in hub.requests())
    for done in (without, wrong, right):
        assert SECRET not in done.stdout + done.stderr
    assert not [path for path in root.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"HF_ENDPOINT": "http://user:secret@127.0.0.1:9"}, "the hub can't be reached for 'org/m'"),
        ({"HF_ENDPOINT": "http://user:secret@nowhere.invalid"}, "the hub can't be reached for 'org/m'"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set in this shell"),
    ],
)
def test_no_network_is_told_in_one_line(fetch: Fetch, recipe: str, variables: dict[str, str], words: str) -> None:
    done = fetch(recipe, **variables)
    assert done.returncode == 1
    assert words in done.stderr and "Traceback" not in done.stderr and "secret" not in done.stderr


def test_a_full_disk_is_told_and_the_next_call_finishes(hub: Hub, fetch: Fetch, recipe: str, root: Root) -> None:
    full = fetch(recipe, file_limit=100_000)  # the weights are larger
    assert full.returncode == 1
    assert f"model.path: 'org/m' could not be written to {cache_of(root.path)}: " in full.stderr
    assert "Traceback" not in full.stderr
    done = fetch(recipe)
    assert done.returncode == 0, done.stderr
    assert "org/m" in done.stdout and "fetched" in done.stdout


def test_what_was_fetched_but_can_not_be_loaded_is_told(hub: Hub, fetch: Fetch, recipe: str) -> None:
    (hub.folder / "models" / "org" / "m" / FIRST / "config.json").write_text("{")
    done = fetch(recipe)
    assert done.returncode == 1
    assert "rlsweep: what was fetched can't be loaded: model.path: " in done.stderr
