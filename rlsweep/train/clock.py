"""What a run has used: counters of work, and wall time booked by what it was spent on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rlsweep.model.flops import generation_flops, training_flops

Purpose = Literal["startup", "training", "evaluation", "saving"]


class Clock:
    """Clocks of a run over all its attempts.

    Wall time is `startup` until the first rollout of an attempt is asked for, then `training` (generation and idle time
    included), with evaluations and checkpoints booked apart. Multiplied by the devices the run occupies, `training` is
    `clock/device_hours`, the paper's axis. Samples, tokens and FLOPs count what was generated for training, trained on
    or not.

    All of it up to the last step that was kept. Work that came after it is done again, so it is in no clock, whether
    the attempt was killed or was asked to stop and gave it up: compute is what a policy is made of, however often its
    run was disturbed. What was lost is told elsewhere: rows that were taken back stand in the next attempt's
    discarded.jsonl, and the outcome of an attempt that was asked to stop says how long it had worked for nothing.
    """

    def __init__(self, devices: int, parameters: int, started: float):
        """`started` is the `time.monotonic()` at which the process began."""
        self._devices = devices
        self._parameters = parameters
        self._samples = 0
        self._tokens = 0
        self._flops = 0
        # Device-seconds: the number of devices may change from one attempt to the next.
        self._spent: dict[str, float] = {"startup": 0.0, "training": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._purpose: Purpose = "startup"
        self._since = started

    def switch(self, purpose: Purpose) -> None:
        """Book the time since the last switch; what follows is for `purpose`."""
        now = time.monotonic()
        self._spent[self._purpose] += self._devices * (now - self._since)
        self._purpose, self._since = purpose, now

    @contextmanager
    def spending(self, purpose: Purpose) -> Iterator[None]:
        """Book the time inside apart, then go back to what it was before."""
        before = self._purpose
        self.switch(purpose)
        try:
            yield
        finally:
            self.switch(before)

    def generated(self, samples: int, prompt_tokens: int, response_tokens: int) -> None:
        """Count rollouts that were sampled for training; forced tokens cost a forward pass and are counted."""
        self._samples += samples
        self._tokens += response_tokens
        self._flops += generation_flops(self._parameters, prompt_tokens + response_tokens)

    def trained(self, tokens: int) -> None:
        """Count the prompt and response tokens of rollouts that were trained on."""
        self._flops += training_flops(self._parameters, tokens)

    def metrics(self) -> dict[str, float]:
        """All clocks, up to now."""
        self.switch(self._purpose)
        hours = {purpose: spent / 3600 for purpose, spent in self._spent.items()}
        return {
            "clock/samples": self._samples,
            "clock/tokens": self._tokens,
            "clock/flops": self._flops,
            "clock/device_hours": hours["training"],
            "clock/startup_hours": hours["startup"],
            "clock/evaluation_hours": hours["evaluation"],
            "clock/saving_hours": hours["saving"],
        }

    def state_dict(self) -> dict[str, Any]:
        """Counters and device-seconds, for JSON."""
        self.switch(self._purpose)
        return {
            "samples": self._samples,
            "tokens": self._tokens,
            "flops": self._flops,
            "device_seconds": dict(self._spent),
        }

    def back_to(self, state: dict[str, Any]) -> None:
        """Forget what was counted and booked in this attempt since `state_dict` told `state`."""
        self._samples, self._tokens, self._flops = state["samples"], state["tokens"], state["flops"]
        self._spent = dict(state["device_seconds"])
        self._since = time.monotonic()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from an earlier attempt; this attempt's time so far is kept."""
        self._samples, self._tokens, self._flops = state["samples"], state["tokens"], state["flops"]
        for purpose, spent in state["device_seconds"].items():
            self._spent[purpose] += spent
