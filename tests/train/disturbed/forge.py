"""Trainers forked from one process that has loaded everything, and disturbed at a chosen moment: `python forge.py`.

Reads one JSON command a line, as `Forge.begin` writes it. A child goes through `rlsweep.train` as a process of its own
would, with the words and variables of the command, up to the n-th time that it comes to a moment: a function of the
product, before or after which, or half-way through which, something befalls it. `how` says what: a signal ("SIGKILL",
"SIGSTOP", "SIGTERM", "SIGINT"; after the last two it goes on); "wait": it sleeps until the run folder holds a file
`wake`; "fail": it raises; "differ": the moment's function returns "unparseable". `then` is a moment at which it comes
again. Answers the child's pid, then its exit code, what it printed, how many optimizer steps had begun when it was
first disturbed, and what it wrote under the run folder, where it is not rank 0.
"""

import importlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

MOMENTS: dict[str, tuple[str, str, str]] = {
    # name: module, attribute (a dot reaches into a class), before | after | half
    "prompt": ("rlsweep.rollout.local", "LocalEngine.submit", "before"),
    "generation": ("rlsweep.rollout.local", "_draw", "before"),
    "loading": ("rlsweep.train.state", "load_model", "before"),
    "grading": ("rlsweep.train.intake", "Tokens.grade", "before"),
    "filters": ("rlsweep.train.loop", "select", "before"),
    "forward": ("rlsweep.train.update", "response_logprobs", "before"),
    "micro-batch": ("accelerate", "Accelerator.backward", "after"),
    "clipping": ("accelerate", "Accelerator.clip_grad_norm_", "after"),
    "optimizer": ("torch.optim", "AdamW.step", "before"),
    "updated": ("torch.optim", "AdamW.step", "after"),
    "publish": ("rlsweep.rollout.local", "LocalEngine.publish", "after"),
    "evaluation": ("rlsweep.train.loop", "evaluate", "before"),
    "evaluated": ("rlsweep.train.loop", "evaluate", "after"),
    "row": ("rlsweep.store.journal", "append_bytes", "half"),
    "written row": ("rlsweep.store.journal", "append_bytes", "after"),
    "weights": ("transformers", "PreTrainedModel.save_pretrained", "after"),
    "moments": ("torch", "save", "half"),
    "rollouts": ("rlsweep.train.intake", "Intake.save", "after"),
    "sync": ("rlsweep.store.checkpoints", "sync_tree", "before"),
    "rename": ("rlsweep.store.checkpoints", "_put", "before"),
    "renamed": ("rlsweep.store.checkpoints", "sync_folder", "before"),
    "removal": ("rlsweep.store.checkpoints", "shutil.rmtree", "before"),
    "pruned": ("rlsweep.store.checkpoints", "prune", "after"),
    "rewind": ("rlsweep.train.loop", "rewind", "before"),
    "rewound": ("rlsweep.store.journal", "write_bytes", "after"),
    "outcome": ("rlsweep.train.__main__", "outcome.write", "before"),
}


begun: list[int] = []
"""Optimizer steps that have begun, and how many there were whenever a signal came."""
at_signal: list[int] = []


def count_steps() -> None:
    """Note each optimizer step when it begins."""
    import torch

    original = torch.optim.AdamW.step

    def step(*arguments: Any, **options: Any) -> Any:
        begun.append(1)
        return original(*arguments, **options)

    torch.optim.AdamW.step = step  # type: ignore[method-assign]


def arm(run: Path, moment: str, times: int, how: str) -> None:
    """Replace the moment's function by one that is disturbed at its `times`-th call."""
    module, path, when = MOMENTS[moment]
    owner: Any = importlib.import_module(module)
    *through, name = path.split(".")
    for step in through:
        owner = getattr(owner, step)
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def disturb() -> None:
        at_signal.append(len(begun))
        if how == "fail":
            raise ValueError("made to fail")
        if how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[how])
            return
        (run / "asleep").touch()
        while not (run / "wake").exists():
            time.sleep(0.01)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != times:
            return original(*arguments, **options)
        if how == "differ":
            return "unparseable"
        if when == "half" and how == "SIGKILL":
            halve(moment, arguments, original)
        if when != "after":
            disturb()
        result = original(*arguments, **options)
        if when == "after":
            disturb()
        return result

    setattr(owner, name, wrapped)


def halve(moment: str, arguments: Any, original: Callable[..., Any]) -> None:
    """Do half of it: half of a row, half of a file."""
    if moment == "row":
        descriptor, data = arguments
        os.write(descriptor, data[: len(data) // 2])
    else:
        whole = io.BytesIO()
        original(arguments[0], whole)
        arguments[1].write(whole.getvalue()[: len(whole.getvalue()) // 2])
        arguments[1].flush()


wrote: list[str] = []


def watch(run: str) -> None:
    """Note what this process writes under the run folder, from Python."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        named = [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"):
            wrote.extend(f"{event} {path}" for path in named if path.startswith(run))

    sys.addaudithook(hear)


def child(command: dict[str, Any], write: int) -> None:
    """One trainer, in a forked process."""
    from rlsweep.train import ranks
    from rlsweep.train.__main__ import main

    said = io.StringIO()
    sys.argv = ["rlsweep.train", command["run"], *command["words"]]
    os.environ.update(command["environment"])
    if command["timeout_s"]:
        ranks.TIMEOUT = timedelta(seconds=command["timeout_s"])
    code = 99
    with redirect_stdout(said), redirect_stderr(said):
        if command["moment"]:
            arm(Path(command["run"]), command["moment"], command["times"], command["how"])
        if command["then"]:
            arm(Path(command["run"]), command["then"], 1, command["how"])
        count_steps()
        if os.environ.get("RANK", "0") != "0":
            watch(command["run"])
        code = main()
    told = {"code": code, "said": said.getvalue(), "steps": sum(at_signal[:1]), "wrote": wrote}
    os.write(write, json.dumps(told).encode())
    os._exit(0)


def serve() -> None:
    """Fork a child a command, one after another."""
    for line in sys.stdin:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                child(json.loads(line), write)
            finally:
                os._exit(98)
        os.close(write)
        print(pid, flush=True)
        with os.fdopen(read, "rb") as answer:
            told = answer.read().decode()
        _, status = os.waitpid(pid, 0)
        print(told or json.dumps({"code": os.waitstatus_to_exitcode(status), "said": ""}), flush=True)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    import transformers  # noqa: F401

    import rlsweep.train.__main__
    import rlsweep.train.loop
    import rlsweep.train.provenance
    import rlsweep.train.state
    import rlsweep.train.warm_start  # noqa: F401

    serve()
