"""Being asked to stop, by SIGTERM or SIGINT: work is given up where that is safe, and what was finished is kept."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Asked(BaseException):
    """The run was asked to stop: what is under way is given up, the last finished step is kept.

    No Exception: while libraries are loaded the signal itself raises it, and they catch those.
    """


class Stop:
    """Whether this process was asked to stop. Once it was, it stays so; being asked again changes nothing.

    A signal sets a flag, so that it can't break a write. Long work looks at the flag where it can be given up, by
    `check`: at every token position, prompt and micro-batch, up to the optimizer's step and never in it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._raises = False

    def listen(self) -> None:
        """Take SIGTERM and SIGINT for requests to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def check(self) -> None:
        """Raise Asked if the process was asked to stop."""
        if self.asked:
            raise Asked

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, the signal itself raises Asked, once: for loading, which takes long and can be given up anywhere."""
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False
        self.check()  # a library may have swallowed it

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._raises:
            self._raises = False
            raise Asked
