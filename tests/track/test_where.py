"""Where a root's store lies, and what is shown of its address."""

from pathlib import Path

import pytest

from rlsweep.track.where import locate, network_filesystem

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local xfs rw 0 0
scratch@o2ib /lustre\\040scratch lustre rw 0 0
me@host:/x /mnt/far fuse.sshfs rw 0 0
overlay /box fuse.fuse-overlayfs rw 0 0
tmpfs /twice tmpfs rw 0 0
server:/t /twice nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/out", None),
        ("/home/me/out", "nfs4"),
        ("/homework", None),
        ("/home/local/out", None),
        ("/lustre scratch/out", "lustre"),
        ("/mnt/far/out", "fuse.sshfs"),
        ("/box/out", None),
        ("/twice/out", "nfs"),
    ],
)
def test_network_file_systems_are_known_by_the_mount_that_holds_the_path(path: str, kind: str | None) -> None:
    assert network_filesystem(Path(path), MOUNTS) == kind


def test_the_default_is_a_sqlite_file_under_the_root(tmp_path: Path) -> None:
    tracking = locate(tmp_path, {})
    assert tracking.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert (tracking.file, tracking.artifacts) == (tmp_path / "mlflow.db", tmp_path / "mlartifacts")
    assert tracking.notice is None


def test_a_root_on_a_network_file_system_goes_to_the_state_folder_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, state = tmp_path / "far", tmp_path / "state"
    monkeypatch.setattr("rlsweep.track.where.network_filesystem", lambda path: "nfs" if path == root else None)
    tracking = locate(root, {"XDG_STATE_HOME": str(state)})
    assert tracking.file is not None
    assert tracking.file.is_relative_to(state / "rlsweep")
    assert tracking.notice == f"{root} is on a network file system (nfs): its MLflow store is {tracking.file}"
    assert locate(root, {"XDG_STATE_HOME": str(state)}) == tracking
    assert "XDG_STATE_HOME" not in tracking.notice
    monkeypatch.setattr("rlsweep.track.where.network_filesystem", lambda path: "nfs")
    assert "set XDG_STATE_HOME" in (locate(root, {"XDG_STATE_HOME": str(state)}).notice or "")


@pytest.mark.parametrize("character", "#?%")
def test_a_root_that_an_address_cannot_hold_goes_to_the_state_folder(tmp_path: Path, character: str) -> None:
    tracking = locate(tmp_path / f"a{character}b", {"XDG_STATE_HOME": str(tmp_path)})
    assert f"holds a '{character}'" in (tracking.notice or "")
    assert character not in tracking.uri


@pytest.mark.parametrize("uri", ["http://localhost:5000", "https://mlflow.example.org/x"])
def test_a_server_decides_where_artifacts_go(tmp_path: Path, uri: str) -> None:
    tracking = locate(tmp_path, {"MLFLOW_TRACKING_URI": uri})
    assert (tracking.uri, tracking.file) == (uri, None)
    assert (tracking.artifacts, tracking.ours) == (None, False)


def test_a_relative_sqlite_address_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracking = locate(tmp_path / "out", {"MLFLOW_TRACKING_URI": "sqlite:///some.db"})
    assert (tracking.uri, tracking.file) == (f"sqlite:///{tmp_path}/some.db", tmp_path / "some.db")
    assert tracking.artifacts == tmp_path / "out" / "mlartifacts"


def test_credentials_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    for uri in ("https://me:s3cr%40t@host:5000/x?api_key=k3y", "postgresql://me:s3cr%40t@host/db?password=k3y"):
        tracking = locate(tmp_path, {"MLFLOW_TRACKING_URI": uri})
        assert tracking.shown in ("https://host:5000/x", "postgresql://host/db")
        text = tracking.scrub(f"no route to {uri} with t0ken, password s3cr@t")
        for secret in ("me:", "s3cr", "k3y", "t0ken"):
            assert secret not in text
