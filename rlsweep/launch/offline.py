"""The environment of a job: caches under the root, never in $HOME, and nothing asked of a hub that can't be reached."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

HUGGING_FACE = "huggingface"
_CACHES = {
    "HF_HOME": HUGGING_FACE,
    "XDG_CACHE_HOME": "xdg",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
}
"""Variable -> folder under `<root>/cache`."""

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")

_BELOW = {
    "HF_HUB_CACHE": "hub",
    "HUGGINGFACE_HUB_CACHE": "hub",
    "HF_DATASETS_CACHE": "datasets",
    "HF_ASSETS_CACHE": "assets",
    "TRANSFORMERS_CACHE": "hub",
}
"""Variables that win over HF_HOME, with their folder in it: a login shell's, which a job inherits, must not."""


def cache(root: Path) -> Path:
    """Folder of all that jobs may fetch or compile again."""
    return root / "cache"


def hub(root: Path) -> Path:
    """Where `rlsweep fetch` puts snapshots of models and data, and where jobs look for them."""
    return cache(root) / HUGGING_FACE / "hub"


def environment(root: Path, profile: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Variables that a job sets before anything else; the caller lays those of the profile over them.

    Where that has an HF_HOME of its own, all that lies below it moves with it. HOME is left as it is: people's own setup
    lines need it, and nothing of ours writes there.
    """
    ours = {name: str(cache(root) / folder) for name, folder in _CACHES.items()}
    home = Path(profile.get("HF_HOME", ours["HF_HOME"]))
    ours |= {name: str(home / folder) for name, folder in _BELOW.items()}
    return {**ours, **dict.fromkeys(_OFFLINE, "1"), "PYTHONUTF8": "1"}
