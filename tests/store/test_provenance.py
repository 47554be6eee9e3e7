from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts, provenance
from rlsweep.store.files import write_json
from rlsweep.store.layout import RunFolder


def test_of_the_newest_and_of_every_attempt(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert (provenance.read(run), provenance.every(run)) == ({}, ())
    write_json(run.provenance, {"host": "b"})
    assert provenance.every(run) == ({"host": "b"},)
    for host in "a", None, "b":
        attempt = attempts.claim(run)
        if host:  # an attempt that died at its start left none
            write_json(attempt.provenance, {"host": host})
    assert provenance.read(run) == {"host": "b"}
    assert provenance.every(run) == ({"host": "a"}, {"host": "b"})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_json(run.provenance, [])
    with pytest.raises(RlsweepError, match=r"provenance\.json: not an object"):
        provenance.read(run)


def test_the_kind_of_device_may_be_unknown() -> None:
    kinds = [provenance.device_kind(each) for each in ({}, {"devices": None}, {"devices": {"kind": "cuda"}})]
    assert kinds == [None, None, "cuda"]
