"""`python -m rlsweep.train.probe FOLDER --rank R --start N`: look at this node, and write what was found to the folder.

`--check NAME` is one check, which the process above starts and waits for. `--load RECIPE ROOT` only loads model and
data, for `rlsweep fetch`.
"""

import argparse
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rlsweep.errors import RlsweepError
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store.files import describe
from rlsweep.store.layout import Root
from rlsweep.store.probes import Finding, ProbeFolder, Report, as_line, from_lines, read_request, write_report
from rlsweep.train.probe.node import Here

CHECKS: dict[str, tuple[str, float, str]] = {
    "interpreter": ("node", 60, "Python starts too slowly from where it lies"),
    "root": ("node", 60, "the root's file system hangs there"),
    "nodes": ("others", 300, "the root's file system hangs there"),
    "clock": ("others", 90, "the root's file system hangs there"),
    "space": ("node", 30, "a file system hangs there"),
    "limits": ("node", 30, "have the node looked at"),
    "home": ("node", 30, "the file system of $HOME hangs there; runs don't need it, but setup lines may"),
    "scontrol": ("node", 60, "the controller doesn't answer from there"),
    "torch": ("devices", 180, "the driver or a device hangs, or torch loads very slowly from where it lies"),
    "collective": (
        "devices",
        200,
        "ports may be closed between nodes, or GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME wrong",
    ),
    "vllm": ("node", 240, "it loads very slowly from where it lies"),
    "load": ("node", 240, "the cache lies on a file system that is too slow"),
}
"""Name -> module, most seconds, what it means or what to do where it takes longer. In this order, the same on all
nodes: two of them wait for the others."""


def main() -> int:
    """Look, and write or print what was found."""
    parser = argparse.ArgumentParser(prog="python -m rlsweep.train.probe", description="See whether runs could work.")
    parser.add_argument("folder", nargs="?", type=Path, help="folder of the probe: ROOT/probes/TOKEN")
    parser.add_argument("--rank", type=int, default=0, help="which of the job's nodes this is")
    parser.add_argument("--start", type=int, default=0, help="how often the job was started before")
    parser.add_argument("--check", choices=CHECKS, help="do one check in this process, and print what it found")
    parser.add_argument("--load", nargs=2, type=Path, metavar=("RECIPE", "ROOT"), help="only load model and data")
    arguments = parser.parse_args()
    try:
        if arguments.load:
            from rlsweep.train.probe.load import load

            print(json.dumps(load(read_resolved(arguments.load[0]), Root(arguments.load[1]))))
        elif arguments.folder is None:
            parser.error("a folder is needed")
        elif arguments.check:
            found = check(ProbeFolder(arguments.folder), arguments.rank, arguments.start, arguments.check)
            print(as_line(found), flush=True)
        else:
            look(ProbeFolder(arguments.folder), arguments.rank, arguments.start)
    except RlsweepError as error:
        print(f"rlsweep: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def look(folder: ProbeFolder, rank: int, start: int) -> None:
    """Do all checks, each in a process of its own, and write the report anew after each."""
    findings: list[Finding] = []
    for done in range(len(CHECKS) + 1):
        pending = tuple(CHECKS)[done:]
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        try:
            write_report(folder, Report(rank, node, socket.gethostname(), tuple(findings), pending))
        except OSError as error:
            print(f"rlsweep: what was found can't be written: {describe(error)}", flush=True)
        if pending:
            findings.append(_apart(folder, rank, start, pending[0]))
            print(as_line(findings[-1]), flush=True)


def check(folder: ProbeFolder, rank: int, start: int, name: str) -> Finding:
    """One check in this process. Whatever it raises is what it found."""
    try:
        module = importlib.import_module(f"rlsweep.train.probe.{CHECKS[name][0]}")
        verdict, text = getattr(module, name)(Here(folder, read_request(folder), rank, start))
    except ImportError as error:
        text = f"{sys.executable} can't import what it needs: {one_line(error)}; see interpreter and setup"
        return Finding(name, "failed", text)
    except (OSError, RlsweepError) as error:
        return Finding(name, "failed", describe(error).splitlines()[0])
    return Finding(name, verdict, text)


def one_line(error: BaseException) -> str:
    """The first line of an error, its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _apart(folder: ProbeFolder, rank: int, start: int, name: str) -> Finding:
    """One check in a process that is killed when it takes too long."""
    _, limit, hint = CHECKS[name]
    command = [
        sys.executable,
        "-m",
        "rlsweep.train.probe",
        str(folder.path),
        "--rank",
        str(rank),
        "--start",
        str(start),
    ]
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            [*command, "--check", name],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
                process.wait(5)
            return Finding(name, "failed", f"no result within {limit:.0f} s: {hint}")
        out.seek(0)
        lines = [line.strip() for line in out if line.strip()]
    told = from_lines(lines)
    if told:
        return told[-1]
    code = process.returncode
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Finding(name, "failed", f"the check {how}" + (f": {lines[-1]}" if lines else ""))


if __name__ == "__main__":
    sys.exit(main())
