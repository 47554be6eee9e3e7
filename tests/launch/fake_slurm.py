"""Stands in for the commands of Slurm where a test must count their calls or have them fail: called by their names.

It keeps its jobs in `jobs.json`, and a line for each call in `calls`, in the folder that holds it. The file
`behaviour` there tells it how to behave, a line a rule: `NAME down`; `sbatch refuse N WORDS` from the Nth sbatch on,
counted from 1; `sbatch lose N`, which takes the Nth job and says that no answer came. `size` holds MaxArraySize.
"""

import json
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAME = sys.argv[1]
DOWN = "Unable to contact slurm controller (connect failure)"
CONFIG = """Configuration data as of 2026-12-01T12:00:00
AccountingStorageType   = accounting_storage/none
ClusterName             = fake
KillWait                = 30 sec
MaxArraySize            = {size}
SLURM_VERSION           = 22.05.8
"""


def main(arguments: list[str]) -> int:
    with open(HERE / "calls", "a") as file:
        file.write(shlex.join([NAME, *arguments]) + "\n")
    told = [line.split() for line in read("behaviour").splitlines()]
    words = [line[1:] for line in told if line[0] == NAME]
    if any(line[0] == "down" for line in words):
        print(f"{NAME}: error: {DOWN}", file=sys.stderr)
        return 1
    jobs = json.loads(read("jobs.json") or "{}")
    code = {"sbatch": sbatch, "squeue": squeue, "scontrol": scontrol, "scancel": scancel}.get(NAME, nothing)(
        arguments, jobs, words
    )
    (HERE / "jobs.json").write_text(json.dumps(jobs))
    return code


def sbatch(arguments: list[str], jobs: dict[str, dict[str, object]], words: list[list[str]]) -> int:
    number = sum(line.startswith("sbatch ") for line in read("calls").splitlines())
    for rule, nth, *rest in words:
        if rule == "refuse" and number >= int(nth):
            print(f"sbatch: error: Batch job submission failed: {' '.join(rest)}", file=sys.stderr)
            return 1
    flags = {}
    for line in Path(arguments[-1]).read_text().splitlines():
        if line.startswith("#SBATCH --"):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            flags[name] = shlex.split(value)[0] if value else ""
    count = int(flags["array"].partition("%")[0].removeprefix("0-")) + 1 if "array" in flags else 0
    job = str(100 + len(jobs))
    jobs[job] = {"name": flags["job-name"], "count": count, "held": "hold" in flags, "state": "PENDING"}
    if any(rule == "lose" and number == int(nth) for rule, nth, *_ in words):
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(f"Submitted batch job {job}")
    return 0


def squeue(arguments: list[str], jobs: dict[str, dict[str, object]], words: list[list[str]]) -> int:
    for id, job in jobs.items():
        if job["state"] == "COMPLETED":
            continue
        count = int(str(job["count"]))
        for each in [f"{id}_{number}" for number in range(count)] or [id]:
            reason = "JobHeldUser" if job["held"] else "Resources"
            print(f"{each}|{job['state']}|{reason}||N/A|{job['name']}")
    return 0


def scontrol(arguments: list[str], jobs: dict[str, dict[str, object]], words: list[list[str]]) -> int:
    if arguments[:2] == ["show", "config"]:
        print(CONFIG.format(size=read("size") or "1001"))
    elif arguments[:2] == ["show", "partition"]:
        print("PartitionName=main Default=YES MaxTime=1-00:00:00 State=UP TotalNodes=4 MaxNodes=UNLIMITED")
    elif arguments[0] == "release":
        for id in arguments[1].split(","):
            jobs[id]["held"] = False
    return 0


def scancel(arguments: list[str], jobs: dict[str, dict[str, object]], words: list[list[str]]) -> int:
    for id in [each.partition("_")[0] for each in arguments if not each.startswith("-")]:
        jobs[id]["state"] = "CANCELLED"
    return 0


def nothing(arguments: list[str], jobs: dict[str, dict[str, object]], words: list[list[str]]) -> int:
    if NAME == "sinfo":
        print("main*|4|96|1000000|gpu:h100:8")
    return 0


def read(name: str) -> str:
    path = HERE / name
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
