"""What a job's environment says, and what huggingface_hub makes of it."""

import os
import subprocess
import sys
from pathlib import Path

from rlsweep.launch.offline import environment, hub, on_node

ASK = (
    "from huggingface_hub import constants as c; print(c.HF_HUB_OFFLINE, c.HF_HUB_CACHE, c.HF_ASSETS_CACHE, sep='\\n')"
)


def test_what_jobs_read_lies_under_the_root_and_no_hub_is_asked(tmp_path: Path) -> None:
    root = tmp_path / "dossier à moi"
    found = environment(root)
    switches = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "PYTHONUTF8"}
    assert {found[name] for name in switches} == {"1"}
    assert Path(found["HF_HOME"]).is_relative_to(root / "cache") and found["HF_HUB_CACHE"] == str(hub(root))
    assert "HOME" not in found
    assert not root.exists()


def test_what_jobs_compile_lies_on_the_node_and_not_in_home(tmp_path: Path) -> None:
    """All jobs of a sweep compile at once, under file locks: not on a file system that they share."""
    root = tmp_path / "root"
    found = environment(root)
    assert {name for name, value in found.items() if Path(value).is_relative_to(on_node())} == {
        *("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"),
        *("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "FLASHINFER_WORKSPACE_BASE"),
    }
    assert str(os.getuid()) in on_node().name and not on_node().is_relative_to(root)
    assert all(Path(value).is_absolute() for value in found.values() if value != "1")


def test_what_a_login_shell_has_set_does_not_lead_away_from_the_root(tmp_path: Path) -> None:
    """huggingface_hub itself says where it would look: jobs inherit the environment of the shell that submits."""
    shell = {"HF_HUB_CACHE": "/home/x", "HF_ASSETS_CACHE": "/home/y", "HF_HUB_OFFLINE": "0", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**shell, **environment(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:3] == ["True", str(hub(tmp_path)), str(tmp_path / "cache/huggingface/assets")]


def test_a_profile_that_moves_the_hugging_face_folder_moves_all_of_it(tmp_path: Path) -> None:
    profile = {"HF_HOME": str(tmp_path / "shared"), "GREETING": "hello"}
    found = environment(tmp_path / "root", profile) | profile
    assert found["HF_HUB_CACHE"] == str(tmp_path / "shared" / "hub")
    assert found["HF_DATASETS_CACHE"] == str(tmp_path / "shared" / "datasets")
    assert found["TRITON_CACHE_DIR"] == str(on_node() / "triton")
