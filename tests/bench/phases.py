"""Where the CPU seconds go: functions that book what their calls took."""

import time
from typing import Any


class Phases:
    """CPU seconds by phase. Phases must not call each other, or the inner one counts twice."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._booked: dict[str, str] = {}

    def book(self, owner: Any, name: str, phase: str) -> None:
        """From here on count the CPU seconds of every call of `owner.name` as `phase`."""
        self._booked[phase] = name
        original = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return original(*arguments, **options)
            finally:
                self.spent[phase] = self.spent.get(phase, 0.0) + time.process_time() - began

        setattr(owner, name, timed)

    def complete(self) -> dict[str, float]:
        """What was spent; RuntimeError where a phase was never entered, because the code has changed since."""
        missing = [f"{phase} ({self._booked[phase]})" for phase in self._booked if phase not in self.spent]
        if missing:
            raise RuntimeError(f"booked, but never called: {', '.join(missing)}")
        return dict(self.spent)
