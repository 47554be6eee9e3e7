"""What a person gets wrong, at the command line: one message, exit code 2, nothing written, never a traceback."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import Result

Call = Callable[..., Result]
SHIPPED = ("dapo-qwen", "grpo-deepseek", "magistral", "minimax", "scalerl")
BOMB = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [{f'*{old}, ' * 9}]\n" for old, new in itertools.pairwise("abcdefgh"))


@dataclass(frozen=True)
class Case:
    """A command line, the files it is about, and the words that its message must hold."""

    name: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


def file(name: str, content: str | bytes, *words: str) -> Case:
    """A recipe file that can't be read."""
    data = content if isinstance(content, bytes) else content.encode()
    return Case(name, ("ablate", "r.yaml", "--scale", "tiny"), words, {"r.yaml": data})


def tiny(name: str, options: str, *words: str) -> Case:
    """Options on a shipped recipe at the tiny scale."""
    return Case(name, ("ablate", "scalerl", "--scale", "tiny", *options.split()), words)


CASES = [
    Case("missing file", ("ablate", "no/such.yaml"), ("no/such.yaml: no such file; shipped recipes: ", *SHIPPED)),
    Case(
        "missing name", ("ablate", "scaleRL"), ("'scaleRL': no such recipe", "scalerl", "a file is named by its path")
    ),
    Case("no recipe", ("ablate",), ("no recipe; give its file or a shipped name: ", *SHIPPED)),
    Case("a folder", ("ablate", "./"), ("no such file",)),
    file("tabs", "name: x\n\tloss: cispo\n", "r.yaml:2: not valid YAML", "a tab: indent with spaces"),
    file("duplicate keys", "loss: cispo\n\nloss: dapo\n", "r.yaml:3: loss: stated twice; first on line 1"),
    file("duplicate keys within", "loss:\n  type: cispo\n  type: dapo\n", "r.yaml:3: type: stated twice"),
    file("anchor bomb", BOMB, "r.yaml:3: more than 16 aliases"),
    file("an alias of itself", "loss: &a\n  type: *a\n", "r.yaml:2: alias *a names nothing that stands before it"),
    file("list for map", "- loss: cispo\n", "r.yaml:1: a list stands at the top; it must be a map of sections"),
    file("list for section", "loss: [cispo]\n", "r.yaml:1: loss: a list is not valid", "cispo, dapo, gspo"),
    file("text for map", "just words\n", "r.yaml:1: ", "it must be a map of sections"),
    file("deep", "a: " + "[" * 5000 + "]" * 5000, "r.yaml:1: nested deeper than"),
    file("circle to itself", "extends: r.yaml\n", "r.yaml:1: extends: a circle: r.yaml extends r.yaml"),
    Case(
        "circle of two",
        ("ablate", "a.yaml"),
        ("b.yaml:2: extends: a circle: a.yaml extends b.yaml extends a.yaml",),
        {"a.yaml": b"extends: b.yaml\n", "b.yaml": b"# back\nextends: a.yaml\n"},
    ),
    file("extends nothing there", "extends: no.yaml\n", "r.yaml:1: extends: ", "no.yaml"),
    file("Latin-1", "name: x\n# café\n".encode("latin-1"), "r.yaml:2: not UTF-8; save the file as UTF-8"),
    file("UTF-16", "loss: cispo\n".encode("utf-16"), "r.yaml:1: not UTF-8"),
    file("a NUL", b"name: a\0b\n", "r.yaml:1: not valid YAML: a character that it doesn't allow"),
    file("binary", bytes(range(256)), "r.yaml:"),
    file("empty", b"", "r.yaml:1: the file is empty"),
    file("only a comment", "# later\n", "r.yaml:1: the file is empty"),
    file("two documents", "loss: cispo\n---\nloss: dapo\n", "r.yaml:2: a second document"),
    file("code", "loss: !!python/object/apply:os.system [id]\n", "r.yaml:1: tag", "not allowed"),
    tiny("unknown loss", "--set loss=cipso", "--set loss=cipso: loss: 'cipso' is not valid", "did you mean cispo?"),
    tiny("unknown loss as an axis", "--vary loss=cispo,ppo", "loss: 'ppo' is not valid", "gspo"),
    tiny("unknown key", "--set loss.epsmax=4", "loss.epsmax: unknown key", "eps_max"),
    tiny("k below range", "--set off_policy=ppo-0", "off_policy.k: 0 is not valid; it must be from 1 to 1024"),
    tiny("k above range", "--set off_policy.k=1000000", "off_policy.k: 1000000 is not valid", "from 0 to 1024"),
    tiny("k that is no number", "--set off_policy=pipeline-x", "'pipeline-x' is not valid", "pipeline-8"),
    tiny(
        "one sample with prompt normalization",
        "--set batch.rollouts=1 --set normalization=prompt",
        "batch.rollouts",
        "2 ",
    ),
    tiny(
        "GSPO with token aggregation",
        "--set loss=gspo --set aggregation=token",
        "aggregation: 'token' weighs tokens, but loss gspo has one ratio a sequence; valid: sample, prompt",
    ),
    tiny(
        "GSPO with token aggregation, one variant of four",
        "--vary loss=cispo,gspo --vary aggregation=prompt,token",
        "valid: sample, prompt (variant loss=gspo,aggregation=token)",
    ),
    tiny("no seeds", "--seeds 0", "--seeds: 0 is not valid"),
    tiny("the same seed twice", "--seeds 4,4", "--seeds: seed 4 twice"),
    tiny("one axis twice", "--vary loss=cispo --vary loss=dapo", "loss: an axis twice"),
    tiny("an axis without values", "--vary loss=", "--vary loss: an axis without values"),
    tiny("a name with a slash", "--name a/b", "'a/b' is no name for a sweep"),
    tiny("no such profile", "--cluster nowhere", "no such profile; shipped profiles: gres, h100, local, test"),
    tiny("no such scale", "--scale huge", "huge", "tiny"),
    tiny("a model that is nowhere", '--set model={"type":"pretrained","path":"/no/model"}', "model.path", "/no/model"),
    Case("no such sweep", ("ablate", "--sweep", "nothing"), ("'nothing': no such sweep; shipped sweeps: ", "loss")),
    Case("a sweep in Latin-1", ("ablate", "--sweep", "s.yaml"), ("s.yaml:1: not UTF-8",), {"s.yaml": b"name: \xe9\n"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused_with_what_where_and_what_is_valid(
    root: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name, content in case.files.items():
        Path(name).write_bytes(content)
    result = call(*case.command)
    assert isinstance(result.exception, SystemExit), result.exc_info  # anything else would be a traceback
    assert (result.exit_code, result.stdout) == (2, "")
    for words in case.words:
        assert words in result.stderr
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("rlsweep: ") and len(lines) == 1
    assert not root.exists() and sorted(path.name for path in Path().iterdir()) == sorted(case.files)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("status", "s"), "there is no sweep under "),
        (("sync",), "there is no sweep under "),
        (("report", "s"), "there is no sweep under "),
        (("cancel", "--sweep", "s"), "there is no sweep under "),
        (("cancel",), "nothing to cancel: name runs, or a whole sweep with --sweep"),
        (("logs", "abcd12"), "there is no sweep under "),
        (("explain", "loss.epsmax"), "eps_max"),
    ],
)
def test_commands_about_what_isnt_there_are_refused_and_make_nothing(
    root: Path, call: Call, command: tuple[str, ...], words: str
) -> None:
    result = call(*command)
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == 2 and words in result.stderr and result.stdout == ""
    assert not root.exists()


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[-1]], ids=lambda case: case.name)
def test_the_installed_command_says_the_same(tmp_path: Path, case: Case) -> None:
    for name, content in case.files.items():
        (tmp_path / name).write_bytes(content)
    environment = {**os.environ, "RLSWEEP_ROOT": str(tmp_path / "root")}
    done = subprocess.run(
        [sys.executable, "-m", "rlsweep", *case.command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert all(words in done.stderr for words in case.words)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("command", ["plan", "ablate"])
def test_a_model_folder_without_tokenizer_is_refused(
    call: Call, tmp_path: Path, model_folder: str, command: str
) -> None:
    model, root = tmp_path / "model", tmp_path / "root"
    shutil.copytree(model_folder, model)
    for path in model.glob("tokenizer*"):
        path.unlink()
    chosen = f"model={{type: pretrained, path: '{model}'}}"
    result = call(command, "scalerl", "--scale", "tiny", "--set", chosen, "--name", "s", "--root", str(root))
    assert result.exit_code == 2 and "Traceback" not in result.output and not root.exists()
    assert f"'{model}' holds no tokenizer; one of tokenizer.json, " in result.stderr


def test_a_model_folder_that_loses_its_tokenizer_fails_its_run_with_the_reason(
    call: Call, tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by a real trainer, before it loads the weights."""
    monkeypatch.setattr("rlsweep.track.sync", lambda root, name, say: None)
    monkeypatch.setattr("rlsweep.recipe.draft.TOKENIZER_FILES", ("config.json",))
    model, root = tmp_path / "model", str(tmp_path / "root")
    shutil.copytree(model_folder, model)
    for path in model.glob("tokenizer*"):
        path.unlink()
    chosen = f"model={{type: pretrained, path: '{model}'}}"
    result = call("ablate", "scalerl", "--scale", "tiny", "--set", chosen, "--name", "s", "--root", root)
    assert result.exit_code == 3 and "Traceback" not in result.output
    told = f"model.path: '{model}' holds no tokenizer; one of tokenizer.json, "
    assert f"failed: {told}" in result.stderr and "sweep s: 1 failed" in result.stderr
    status = call("status", "s", "--root", root)
    assert "\tfailed\t0\t200\t-\t1\t" in status.stdout and told in status.stdout


def test_a_command_line_that_is_not_utf_8_is_refused(root: Path, call: Call) -> None:
    bad = os.fsdecode(b"caf\xe9")
    result = call("ablate", "scalerl", "--scale", "tiny", "--root", bad)
    assert result.exit_code == 2 and "its path is not UTF-8; choose another" in result.stderr
    assert not Path(bad).exists()
    result = call("plan", f"{bad}.yaml")
    assert result.exit_code == 2 and "no such file" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", [("plan", "scalerl", "--scale", "tiny"), ("explain", "loss")])
def test_output_that_cannot_be_written_is_one_line(root: Path, command: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rlsweep", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "rlsweep: no space left on device"
    assert "Traceback" not in done.stderr
    # Notes are for people, and no command fails where nobody can read them.
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "rlsweep", *command], stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 0 and done.stdout


def test_a_closed_stdout_is_no_error(root: Path) -> None:
    command = f"'{sys.executable}' -m rlsweep plan scalerl --scale tiny >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "1 to submit" in done.stderr and "Traceback" not in done.stderr
