"""The public surface: eight names, loaded when first used, and what a wheel carries."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rlsweep

HERE = Path(__file__).parents[1]


def test_the_eight_names_are_there() -> None:
    assert len(rlsweep.__all__) == 8
    assert all(getattr(rlsweep, name) is not None for name in rlsweep.__all__)
    assert rlsweep.Fit.__module__.startswith("rlsweep.law")
    with pytest.raises(AttributeError, match="no attribute 'trainer'"):
        _ = rlsweep.trainer


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, rlsweep; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "mlflow", "numpy", "scipy", "omegaconf", "rich", "click"} & set(loaded)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without network: the build backend is in the test environment."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", target, HERE]
    subprocess.run(command, check=True)
    return next(target.glob("rlsweep-*.whl"))


def test_the_wheel_carries_recipes_sweeps_profiles_and_template(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("recipes", "sweeps", "slurm"):
        shipped = {f"rlsweep/_data/{path.relative_to(HERE)}" for path in (HERE / folder).rglob("*.yaml")}
        assert shipped and shipped <= names
    assert {"rlsweep/py.typed", "rlsweep/report/report.html.j2"} <= names


def test_a_wheel_finds_what_it_ships_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, without the checkout beside it."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import rlsweep; from rlsweep.launch.cluster import load_cluster; "
        "print(rlsweep.__file__, len(rlsweep.expand(sweep='loss', scale='tiny').runs), load_cluster('local').name)"
    )
    # -P and an own path: the editable install must not be what answers.
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert found[0].startswith(str(tmp_path)) and found[1:] == ["3", "local"]
