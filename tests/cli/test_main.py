import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import Result

from rlsweep import cli
from rlsweep.cli import COMMANDS, main
from rlsweep.errors import RecipeError, RlsweepError, UsageError

Call = Callable[..., Result]


def test_help_imports_nothing_heavy_and_lists_every_command() -> None:
    code = """
import sys
from rlsweep.cli import main
try:
    main(["--help"], prog_name="rlsweep")
except SystemExit as end:
    assert not end.code
ours = {name for name in sys.modules if name.startswith("rlsweep")}
heavy = {"torch", "mlflow", "rich", "omegaconf", "yaml", "numpy", "scipy", "pandas", "matplotlib", "submitit"}
print(sorted(ours), sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "['rlsweep', 'rlsweep.cli', 'rlsweep.errors'] []"
    for name, (_, help_) in COMMANDS.items():
        assert f"  {name} " in done.stdout and help_.split()[0] in done.stdout
    assert "Exit codes: 0; 1 error; 2 usage or recipe; 3 some runs failed" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_is_the_first_sentence_of_the_commands_own(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.name == name
    assert " ".join((command.help or "").split("\n\n")[0].split()) == COMMANDS[name][1]
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_an_unknown_command_is_a_usage_error(call: Call) -> None:
    result = call("ablte")
    assert result.exit_code == 2 and "No such command 'ablte'" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RlsweepError("no\nGPU"), 1, "rlsweep: no\nGPU\n"),
        (RecipeError("bad"), 2, "rlsweep: bad\n"),
        (UsageError("unknown"), 2, "rlsweep: unknown\n"),
        (PermissionError(13, "Permission denied", "/a b/é"), 1, "rlsweep: /a b/é: permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "COMMANDS", {"fails": (f"{__name__}:fails", "")})
    monkeypatch.setattr(cli, "import_module", lambda name: type("module", (), {"fails": fails}))
    result = call("fails")
    assert (result.exit_code, result.stderr, result.stdout) == (code, text, "")


def test_a_reader_that_goes_away_is_met_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rlsweep", "plan", "--sweep", "loss", "--scale", "tiny", "--seeds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(60)
    process.stderr.close()
    assert "Traceback" not in errors and "BrokenPipe" not in errors
