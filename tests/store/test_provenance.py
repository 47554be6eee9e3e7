from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts, provenance
from rlsweep.store.files import write_json
from rlsweep.store.layout import RunFolder


def test_of_the_newest_and_of_every_attempt(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert (provenance.read(run), provenance.every(run)) == ({}, ((), ()))
    write_json(run.provenance, {"host": "b"})
    assert provenance.every(run) == (({"host": "b"},), ())
    for host in "a", None, "b":
        attempt = attempts.claim(run)
        if host:  # an attempt that died at its start left none
            write_json(attempt.provenance, {"host": host})
    assert provenance.read(run) == {"host": "b"}
    assert provenance.every(run) == (({"host": "a"}, {"host": "b"}), ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"provenance\.json: not an object"),
        ('{"devices": "cpu"}', r"provenance\.json: devices is not an object"),
        ('{"packages": ["torch"]}', r"provenance\.json: packages is not an object"),
        ('{"host": "b"', r"provenance\.json: not valid JSON"),
        ("", r"provenance\.json: not valid JSON"),
        ("[" * 100_000, r"provenance\.json: not valid JSON"),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path, content: str, message: str) -> None:
    run = RunFolder(tmp_path)
    first, second = attempts.claim(run), attempts.claim(run)
    write_json(first.provenance, {"host": "a"})
    second.provenance.write_text(content)
    run.provenance.write_text(content)
    with pytest.raises(RlsweepError, match=message):
        provenance.read(run)
    found, wrong = provenance.every(run)
    assert found == ({"host": "a"},)
    assert [error.partition(": ")[0] for error in wrong] == [str(second.provenance), str(run.provenance)]
    run.provenance.unlink()
    run.provenance.mkdir()
    assert provenance.every(run)[1][1] == f"{run.provenance}: is a directory"


def test_the_kind_of_device_may_be_unknown() -> None:
    kinds = [provenance.device_kind(each) for each in ({}, {"devices": None}, {"devices": {"kind": "cuda"}})]
    assert kinds == [None, None, "cuda"]
