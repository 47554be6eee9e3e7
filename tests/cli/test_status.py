import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import Journal
from rlsweep.store.layout import Root
from rlsweep.store.outcome import Outcome

Call = Callable[..., Result]


def want(root: Root, sweep: str, *keys: str, steps: int = 10) -> None:
    """Runs in a ledger: variant base, seeds 0, 1, ..."""
    ledger.append(
        root.sweep(sweep),
        [
            {
                "kind": "intent",
                "time": 1.0,
                "run_key": key,
                "variant": "base",
                "variant_key": "V",
                "seed": seed,
                "difference": {},
                "steps": steps,
            }
            for seed, key in enumerate(keys)
        ],
    )


def attempt(root: Root, key: str, alive: bool, state: str | None = None, step: int = 0, rate: float = 0.5) -> None:
    """An attempt that wrote two rows, and ended or not."""
    run = root.run(key)
    owner = attempts.claim(run)
    attempts.record_process(owner)
    with Journal(run, owner) as journal:
        journal.append({"kind": "evaluation", "step": 0, "time": 1.0, "metrics": {"evaluation/pass_rate": rate}})
        journal.append({"kind": "step", "step": 3, "time": 2.0, "metrics": {}})
    if not alive:
        write_json(owner.process, {**read_json(owner.process), "start_ticks": 1})
    if state:
        outcome.write(run, Outcome(state, step, f"because {state}"))


def test_each_state_is_told_from_ledger_folder_and_process(root: Path, call: Call) -> None:
    place = Root(root)
    keys = [f"{number:012x}" for number in range(8)]
    want(place, "s", *keys)
    attempt(place, keys[1], alive=True)
    for number, state in enumerate(["finished", "interrupted", "failed", "diverged"], 2):
        attempt(place, keys[number], alive=False, state=state, step=10 if state == "finished" else 4)
    attempt(place, keys[6], alive=False)
    attempt(place, keys[7], alive=False, state="finished", step=5, rate=float("nan"))
    found = json.loads(call("status", "--json").stdout)
    assert found["sweep"] == "s" and found["root"] == str(root)
    assert [(run["state"], run["step"], run["total"], run["pass_rate"], run["attempt"]) for run in found["runs"]] == [
        ("waiting", 0, 10, None, None),
        ("running", 3, 10, 0.5, 1),
        ("finished", 10, 10, 0.5, 1),
        ("interrupted", 4, 10, 0.5, 1),
        ("failed", 4, 10, 0.5, 1),
        ("diverged", 4, 10, 0.5, 1),
        ("lost", 3, 10, 0.5, 1),
        ("waiting", 5, 10, None, 1),
    ]
    result = call("status")
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [line[0] for line in lines] == keys and lines[2][:7] == [
        keys[2],
        "base",
        "2",
        "finished",
        "10",
        "10",
        "0.500",
    ]
    assert "2 waiting, 1 running" in result.stderr


def test_check_tells_failed_and_lost_runs_by_the_exit_code(root: Path, call: Call) -> None:
    place = Root(root)
    want(place, "s", "a" * 12)
    attempt(place, "a" * 12, alive=False, state="diverged", step=3)
    assert call("status", "--check").exit_code == 0
    want(place, "s", "a" * 12, "b" * 12)
    attempt(place, "b" * 12, alive=False, state="failed", step=3)
    assert call("status").exit_code == 0
    result = call("status", "s", "--check", "--json")
    assert result.exit_code == 3 and len(json.loads(result.stdout)["runs"]) == 2


def test_an_unknown_sweep_is_refused_with_the_valid_ones(root: Path, call: Call) -> None:
    result = call("status")
    assert result.exit_code == 2 and f"there is no sweep under {root} yet" in result.stderr
    want(Root(root), "s", "a" * 12)
    result = call("status", "t")
    assert result.exit_code == 2 and "'t' is not a sweep; valid: s" in result.stderr
    assert not root.joinpath("sweeps", "t").exists()


def test_logs_prints_the_log_of_the_attempt_meant(root: Path, call: Call) -> None:
    place = Root(root)
    want(place, "s", "abcd11111111", "abcd22222222", "cafe00000000")
    for number, text in enumerate(["first é\n", "second"], 1):
        attempt(place, "abcd11111111", alive=False, state="failed")
        attempts.Attempt(place.run("abcd11111111"), number).log.write_text(text)
    place.run("abcd22222222").path.mkdir()
    for meant in ("abcd11111111", "abcd1", "base:0"):
        result = call("logs", meant)
        assert (result.exit_code, result.stdout) == (0, "second")
    assert call("logs", "abcd1", "--attempt", "1").stdout == "first é\n"
    assert "attempt 1 of 2" in call("logs", "abcd1", "--attempt", "1").stderr
    assert call("logs", "abcd1", "--follow", "--attempt", "1").stdout == "first é\nsecond"
    result = call("logs", "abcd1", "--attempt", "1", "--json")
    log = attempts.Attempt(place.run("abcd11111111"), 1).log
    expected = {"run_key": "abcd11111111", "attempt": 1, "path": str(log), "lines": ["first é"]}
    assert json.loads(result.stdout) == expected and result.stderr == ""
    log.unlink()
    assert json.loads(call("logs", "abcd1", "--attempt", "1", "--json").stdout)["lines"] == []
    assert call("logs", "abcd1", "--json", "--follow").exit_code == 2
    for arguments, message in {
        ("abcd",): "'abcd' is the start of several runs: abcd11111111, abcd22222222",
        ("abc",): "'abc' is not a run",
        ("base",): "'base' has 3 seeds: abcd11111111, abcd22222222, cafe00000000; give one of them",
        ("base:9",): "'base:9' is not a run: give a key, its first 4 digits or more, a variant, or variant:seed",
        ("abcd1", "--attempt", "7"): "has no attempt 7; it has: 1, 2",
        ("base:2",): "has not been started yet",
    }.items():
        result = call("logs", *arguments)
        assert result.exit_code == 2 and message in result.stderr


def test_cancel_says_what_happened_to_each(root: Path, call: Call) -> None:
    place = Root(root)
    want(place, "s", "a" * 12, "b" * 12)
    attempt(place, "a" * 12, alive=False, state="finished", step=10)
    attempt(place, "b" * 12, alive=True)
    owner = attempts.newest(place.run("b" * 12))
    assert owner is not None
    write_json(owner.process, {**read_json(owner.process), "host": "elsewhere"})
    result = call("cancel", "--sweep", "s")
    assert result.exit_code == 1
    assert (
        result.stdout == f"{'a' * 12} is not running (finished)\n{'b' * 12} is at work on elsewhere; cancel it there\n"
    )
    assert call("cancel", "base:0").exit_code == 0
    assert call("cancel").exit_code == 2
