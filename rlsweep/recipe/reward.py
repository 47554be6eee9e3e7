"""What an answer earns."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reward:
    """Reward by the verifier's outcome. Filters read the outcome itself, never these numbers."""

    correct: float = 1.0
    """Reward of a correct answer (ScaleRL 2.2: +1)."""
    wrong: float = -1.0
    """Reward of a wrong answer (ScaleRL 2.2: -1)."""
    truncated: float = -1.0
    """Reward of a response that ran into the token limit without an answer. Our choice: as wrong."""
    unparseable: float = -1.0
    """Reward of a finished response that holds no answer. Our choice: as wrong."""
