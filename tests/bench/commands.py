"""Whole commands from start to end: CPU and wall seconds, and the most memory they had at once."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def measured(command: Sequence[str], log: Path) -> dict[str, Any]:
    """One run of a command, its output in `log`. `told` is its last line of standard output, where that is JSON.

    Processes that it waited for are counted with it.
    """
    with tempfile.TemporaryFile() as output, log.open("ab") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}; see {log}")
        output.seek(0)
        last = output.read().rstrip().rpartition(b"\n")[2]
    answer = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall, "peak_mib": used.ru_maxrss / 1024}
    return {**answer, "told": json.loads(last)} if last[:1] == b"{" else answer
