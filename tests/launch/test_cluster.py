from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.launch.cluster import Cluster, load_cluster


def test_the_local_profile_ships() -> None:
    assert load_cluster("local") == Cluster(name="local", parallel=None)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "à moi.yaml"
    path.write_text("executor: local\nparallel: 3\n")
    assert load_cluster(str(path)) == Cluster(name="à moi", parallel=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("executor: slurm\n", "only local works: Slurm profiles come with a later version"),
        ("parallel: 2\n", "executor: missing; valid: local"),
        ("executor: local\nparallel: 0\n", ":2: parallel: 0 is not valid"),
        ("executor: local\nparallel: true\n", "parallel: true is not valid"),
        ("executor: local\npartition: gpu\n", ":2: partition: unknown key; valid: executor, parallel"),
        ("- local\n", "must be a map"),
    ],
)
def test_a_profile_that_is_not_valid_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(RlsweepError) as error:
        load_cluster(str(path))
    assert message in str(error.value) and error.value.exit_code == 2


def test_an_unknown_profile_is_refused_with_the_shipped_ones() -> None:
    with pytest.raises(RlsweepError, match="shipped profiles: local"):
        load_cluster("leonardo")
