"""What RUN may be: keys, their starts, variants, indexes, values of axes; and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rlsweep.cli.runs import find_run, find_runs, labels
from rlsweep.errors import UsageError
from rlsweep.store import ledger
from rlsweep.store.layout import Root

Call = Callable[..., Result]


def key(number: int) -> str:
    return f"{number:02x}" + "cd" * 5


def want(root: Root, sweep: str, variants: list[str], seeds: int = 2, first: int = 0) -> None:
    """Runs of a sweep, in this order; each has its folder."""
    keys = iter(range(first, 100))
    rows = [
        {
            "kind": "intent",
            "time": 1.0,
            "run_key": key(next(keys)),
            "variant": variant,
            "variant_key": variant,
            "seed": seed,
            "difference": {},
            "steps": 10,
        }
        for variant in variants
        for seed in range(seeds)
    ]
    ledger.append(root.sweep(sweep), rows)
    for row in rows:
        root.run(str(row["run_key"])).path.mkdir(parents=True, exist_ok=True)


@pytest.fixture
def place(tmp_path: Path) -> Root:
    """Three losses by two learning rates by two seeds: twelve runs, the first index that of loss=dapo, lr 3e-4."""
    root = Root(tmp_path / "out")
    losses = ("dapo", "cispo", "{type: cispo, eps_max: 4.0}")
    want(root, "s", [f"loss={loss},optimizer.lr={lr}" for loss in losses for lr in ("0.0003", "0.001")])
    return root


def meant(root: Root, text: str, sweep: str | None = None) -> list[int]:
    """Places of the runs, told from the keys that `want` gives."""
    return [int(run.key[:2], 16) for run in find_runs(root, text, sweep)]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("05cdcdcdcdcd", [5]),
        ("05cd", [5]),
        ("0", [0]),
        ("11", [11]),
        ("0-3,5", [0, 1, 2, 3, 5]),
        ("5,0-1,1,5", [5, 0, 1]),
        ("loss=dapo,optimizer.lr=0.0003", [0, 1]),
        ("loss=dapo,optimizer.lr=0.0003:1", [1]),
        ("loss=dapo", [0, 1, 2, 3]),
        ("loss=cispo", [4, 5, 6, 7]),
        ("loss={type: cispo, eps_max: 4.0}", [8, 9, 10, 11]),
        ("loss={eps_max: 4, type: cispo}", [8, 9, 10, 11]),
        ("loss=dapo,cispo,seed=1", [1, 3, 5, 7]),
        ("seed=0,1", list(range(12))),
        ("optimizer.lr=3e-4, seed=0, loss=cispo", [4]),
    ],
)
def test_a_run_is_meant_by_key_variant_index_or_values(place: Root, text: str, places: list[int]) -> None:
    assert meant(place, text) == places


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("12", "'12' is not a run: the indexes of sweep s are 0 to 11"),
        ("3-99", "the indexes of sweep s are 0 to 11"),
        ("1234", "the indexes of sweep s are 0 to 11, and no run's key begins so"),
        ("3-0", "'3-0' runs backwards; write 0-3"),
        ("los=dapo", "'los' is not an axis of sweep s; did you mean loss?; valid: loss, optimizer.lr, seed"),
        ("loss=dappo", "no run of sweep s has loss=dappo; did you mean dapo?; loss is one of: dapo, cispo, {type: "),
        ("seed=2", "no run of sweep s has seed=2; seed is one of: 0, 1"),
        ("seed=true", "no run of sweep s has seed=true"),
        ("loss=dapo,loss=", "no run of sweep s has loss="),
        ("0-3,loss=dapo", "'0-3,loss=dapo' is not a run: give a key"),
        ("dapo", "'dapo' is not a run: give a key, its first four digits or more, a variant"),
        ("", "'' is not a run"),
        ("../runs", "'../runs' is not a run"),
    ],
)
def test_what_means_no_run_is_refused_with_what_is_valid(place: Root, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_runs(place, text, None)
    assert words in str(refused.value)


def test_values_that_no_run_has_together_are_refused(place: Root) -> None:
    want(place, "zipped", ["loss=dapo,off_policy=ppo-8", "loss=cispo,off_policy=pipeline-8"], first=20)
    assert meant(place, "loss=dapo,off_policy=ppo-8", "zipped") == [20, 21]
    with pytest.raises(UsageError, match="no run of sweep zipped has loss=dapo and off_policy=pipeline-8 together"):
        find_runs(place, "loss=dapo,off_policy=pipeline-8", "zipped")


def test_a_variants_whole_name_means_it_alone(place: Root) -> None:
    """As in leave-one-out over two losses, where the base of each is named by its loss alone."""
    want(place, "loo", ["loss=dapo", "loss=dapo,aggregation=token", "loss=cispo"], seeds=1, first=30)
    assert meant(place, "loss=dapo", "loo") == [30]
    assert meant(place, "loss=dapo,seed=0", "loo") == [30, 31]
    assert meant(place, "aggregation=token", "loo") == [31]


def test_digits_that_are_a_keys_start_and_an_index_are_refused(tmp_path: Path) -> None:
    root = Root(tmp_path)
    want(root, "s", ["base"], seeds=1)
    other = root.run("100500cdcdcd")
    other.path.mkdir()
    assert find_runs(root, "1005", None) == [other]  # the sweep has no such index
    ledger.append(
        root.sweep("s"),
        [
            {**vars(ledger.wanted(root.sweep("s"))[0]), "kind": "intent", "seed": seed, "run_key": f"{seed:012d}"}
            for seed in range(1, 1006)
        ],
    )
    with pytest.raises(
        UsageError, match=r"'1005' is the start of run 100500cdcdcd, and an index of sweep s .*1005-1005"
    ):
        find_runs(root, "1005", None)
    assert [run.key for run in find_runs(root, "1005-1005", None)] == [f"{1005:012d}"]
    assert find_runs(root, "100500cdcdcd", None) == [other] == find_runs(root, "10050", None)


def test_one_run_is_asked_for_and_several_are_named(place: Root) -> None:
    assert find_run(place, "loss=dapo,optimizer.lr=0.001,seed=1", None).key == key(3)
    with pytest.raises(UsageError) as refused:
        find_run(place, "loss=dapo,seed=0", None)
    assert str(refused.value) == (
        f"'loss=dapo,seed=0' means 2 runs: {key(0)} (loss=dapo,optimizer.lr=0.0003:0), "
        f"{key(2)} (loss=dapo,optimizer.lr=0.001:0); give one of them"
    )


def test_labels_are_cut_at_commas_outside_quotes_and_braces() -> None:
    assert labels('a={x: [1, 2], y: "p,q]"},b="1,\\",2",c=3') == {
        "a": '{x: [1, 2], y: "p,q]"}',
        "b": '"1,\\",2"',
        "c": "3",
    }
    assert labels("base") == {}
