"""Measure everything, one thing at a time, and write `results.json` beside this file; minutes. `make bench` calls it.

What is compared takes turns in one run, so that a busy machine slows both sides alike. Each measurement is a script of
its own in a process of its own; this one imports nothing large, because a child's peak memory is at least its parent's.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from commands import measured
from race import in_turns, race

from rlsweep.train.provenance import collect

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PACKAGES = ("torch", "transformers", "accelerate", "trl", "mlflow", "numpy", "click")
RLSWEEP = str(Path(sys.executable).parent / "rlsweep")
PLAN = (
    *(RLSWEEP, "plan", "scalerl", "--scale", "tiny", "--vary", "loss=dapo,cispo,gspo,grpo"),
    *("--vary", "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4", "--vary", "normalization=prompt,batch", "--seeds", "250"),
)
IMPORTS = "import accelerate, torch; from transformers import AutoTokenizer, Qwen3ForCausalLM"
SEQUENCES = (64, 128, 256, 512)
"""Sequences in a forward pass of TRL: which is fastest is measured first."""


def main() -> None:
    """All measurements in a folder of their own, which is left where one of them fails."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    for name in ("MLFLOW_TRACKING_URI", "RLSWEEP_ROOT"):
        os.environ.pop(name, None)
    folder = Path(tempfile.mkdtemp(prefix="rlsweep-bench-"))
    began = time.monotonic()
    results = {"made": _made(), **_measure(folder, folder / "log.txt")}
    results["made"]["load_after"] = os.getloadavg()[0]
    results["made"]["minutes"] = (time.monotonic() - began) / 60
    RESULTS.write_text(json.dumps(_short(results), indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder)


def _measure(folder: Path, log: Path) -> dict[str, Any]:
    _say("preparing: the embedded model, a sweep of 100 runs")
    root = str(folder / "root")
    ready = measured(_script("prepare.py", root), log)["told"]
    sweep = str(folder / "sweep")
    synthetic = measured(_script("make_sweep.py", sweep), log)["told"]
    model = ready["model"]
    found: dict[str, Any] = {"synthetic": synthetic, "trainer_steps": ready["steps"]}

    _say("an RL step: TRL's settings")
    trl = {f"{number}": _trl(model, folder, "dapo", number) for number in SEQUENCES}
    found["trl_settings"] = race(trl, 4, 2, log)
    best = min(SEQUENCES, key=lambda number: _median(found["trl_settings"][f"{number}"]))
    found["trl_sequences"] = best
    for loss, rounds in (("dapo", 20), ("cispo", 10)):
        _say(f"an RL step: {loss}")
        sides = {
            "TRL": _trl(model, folder, loss, best),
            "nothing dropped": _ours(model, folder, loss, "keep"),
            "zero variance dropped": _ours(model, folder, loss, "drop"),
        }
        if loss == "dapo":
            sides["nothing dropped, each response by itself"] = _ours(model, folder, loss, "each")
        found[f"step_{loss}"] = race(sides, rounds, 2, log)

    _say("sampling")
    found["sampling"] = measured(_script("sampling.py", model, "20"), log)["told"]
    _say("rlsweep --help")
    found["help"] = _commands(
        {
            "rlsweep --help": (RLSWEEP, "--help"),
            "import click": (sys.executable, "-c", "import click"),
            "pass": (sys.executable, "-c", "pass"),
        },
        15,
        log,
    )
    _say("rlsweep plan")
    found["plan"] = _commands({"plan": (*PLAN, "--root", str(folder / "empty"))}, 3, log)
    _say("journal to MLflow")
    found["tracking"] = measured(_script("tracking.py", str(folder / "tracking"), "3"), log)["told"]
    _say("rlsweep status and report")
    found["status"] = _commands({"status": (RLSWEEP, "status", "--root", sweep)}, 3, log)
    found["report"] = _commands({"report": _script("reporting.py", sweep)}, 2, log, warm_up=0)
    _say("the trainer's memory")
    found["trainer"] = {
        "trainer": [measured((sys.executable, "-m", "rlsweep.train", ready["run"]), log)],
        "imports": [measured((sys.executable, "-c", IMPORTS), log)],
    }
    return found


def _ours(model: str, folder: Path, loss: str, arm: str) -> list[str]:
    return _script("step_ours.py", model, str(folder / f"ours-{loss}-{arm}"), loss, arm)


def _trl(model: str, folder: Path, loss: str, sequences: int) -> list[str]:
    return _script("step_trl.py", model, str(folder / "trl"), loss, str(sequences))


def _script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / name), *arguments]


def _commands(
    commands: Mapping[str, Sequence[str]], rounds: int, log: Path, warm_up: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Whole commands in turns."""
    work = {name: lambda command=command: measured(command, log) for name, command in commands.items()}
    return in_turns(work, rounds, warm_up)


def _median(answers: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(answer["cpu_s"] for answer in answers)


def _made() -> dict[str, Any]:
    """Machine, versions and code; no name of a host, no path."""
    known = collect(1, "cpu")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": known["devices"]["name"],
        "cores": known["devices"]["count"],
        "python": known["python"],
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "commit": known["git"]["commit"],
        "dirty": known["git"]["dirty"],
        "load_before": os.getloadavg()[0],
    }


def _short(value: Any) -> Any:
    """Numbers with as many digits as mean something."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
