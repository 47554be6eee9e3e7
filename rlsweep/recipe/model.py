"""Which language model is trained, and in which precision its numbers are computed."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require

Precision = Literal["float32", "bfloat16"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""A model's folder holds at least one of these."""
HEAD_SIZE = 32
"""Width of the embedded model's attention heads: the smallest that vLLM runs on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The tiny Qwen3-style model that rlsweep makes itself: built and warm-started on first use, then cached."""

    type: Literal["embedded"] = "embedded"
    """Kind of model."""
    width: int = 64
    """Hidden size. Our choice."""
    layers: int = 2
    """Transformer blocks. Our choice."""
    heads: int = 4
    """Attention heads; each is 32 wide, the smallest that vLLM runs on a CPU. Our choice."""
    kv_heads: int = 2
    """Key and value heads. Our choice."""
    feed_forward: int = 128
    """Width of the feed-forward layer. Our choice."""
    warm_start_steps: int = 300
    """Supervised steps on demonstrations before RL, the counterpart of the paper's SFT stage (2.2). Our choice."""
    dtype: Precision = "float32"
    """Precision of the body of the network, in trainer and generator. Our choice: the paper's runs are bfloat16."""
    head_dtype: Precision = "float32"
    """Precision of the output head, in trainer and generator alike (ScaleRL 3.2: float32)."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "kv_heads", "feed_forward", "warm_start_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        divisor = f"a divisor of heads ({self.heads})"
        require(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, divisor, "heads")


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A Hugging Face model: a folder on disk or a hub name with its revision."""

    type: Literal["pretrained"] = "pretrained"
    """Kind of model."""
    path: str = ""
    """Folder or hub name. A folder enters the run's key by its content, a hub name by name and revision."""
    revision: str = "main"
    """Commit of the hub repository; `main` moves and is only good for a plan. Ignored for a folder."""
    dtype: Precision = "bfloat16"
    """Precision of the body of the network, in trainer and generator."""
    head_dtype: Precision = "float32"
    """Precision of the output head, in trainer and generator alike (ScaleRL 3.2: float32)."""

    def __post_init__(self) -> None:
        require(bool(self.path), "path", self.path, "a folder or a hub name such as Qwen/Qwen3-8B")


Model = Embedded | Pretrained
