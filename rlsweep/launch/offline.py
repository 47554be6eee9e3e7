"""The environment of a job: what jobs read lies under the root, what they compile on the node, nothing in $HOME; and no
hub is asked, for none can be reached."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

HUGGING_FACE = "huggingface"
_BELOW = {
    "HF_HUB_CACHE": "hub",
    "HUGGINGFACE_HUB_CACHE": "hub",
    "HF_DATASETS_CACHE": "datasets",
    "HF_ASSETS_CACHE": "assets",
    "TRANSFORMERS_CACHE": "hub",
}
"""Variables that win over HF_HOME, with their folder in it: a login shell's, which a job inherits, must not."""

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")

_COMPILED = {
    "XDG_CACHE_HOME": "xdg",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
"""Variable -> folder under `on_node()`: by default most of these lie in $HOME."""


def cache(root: Path) -> Path:
    """Folder of what was fetched for jobs."""
    return root / "cache"


def hub(root: Path) -> Path:
    """Where `rlsweep fetch` puts snapshots of models and data, and where jobs look for them."""
    return cache(root) / HUGGING_FACE / "hub"


def on_node() -> Path:
    """Folder of each node for what its jobs compile. They guard it with file locks, which a shared file system may not
    have, and all jobs of a sweep would write there at once. Known before a node has given the job a TMPDIR."""
    return Path(f"/tmp/rlsweep-{os.getuid()}")  # noqa: S108  as torch's own is by default


def environment(root: Path, profile: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Variables that a job sets before anything else; the caller lays those of the profile over them.

    Where that has an HF_HOME of its own, all that lies below it moves with it. HOME is left as it is: people's own
    setup lines need it, and nothing of ours writes there.
    """
    home = Path(profile.get("HF_HOME", cache(root) / HUGGING_FACE))
    return {
        "HF_HOME": str(cache(root) / HUGGING_FACE),
        **{name: str(home / folder) for name, folder in _BELOW.items()},
        **dict.fromkeys(_OFFLINE, "1"),
        **{name: str(on_node() / folder) for name, folder in _COMPILED.items()},
        "PYTHONUTF8": "1",
    }
