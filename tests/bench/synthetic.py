"""A sweep whose runs were trained by nobody: submitted as `ablate` does, with journals that follow the law."""

import os
import time
from collections.abc import Sequence

import numpy as np

from rlsweep import expand
from rlsweep.launch.plan import decide
from rlsweep.launch.submit import submitting, write_down
from rlsweep.store import attempts, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import write_json
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.metrics import METRICS
from rlsweep.store.rows import append_bytes, open_for_append, to_line
from rlsweep.sweep.expand import Run
from rlsweep.train.provenance import collect

FLOPS_A_STEP = 1e10


def make(root: Root, vary: Sequence[str], seeds: int, evaluations: int, steps_between: int = 10) -> SweepFolder:
    """Finished runs of the tiny scale: a row a step with every metric, and so many evaluations after that of step 0."""
    sweep = expand(
        "scalerl",
        scale="tiny",
        overrides=[f"budget.steps={evaluations * steps_between}", f"evaluation.every={steps_between}"],
        vary=vary,
        seeds=seeds,
    )
    with submitting(root, sweep.name):
        folder = write_down(sweep, root, decide(sweep, root))
    made_with = collect(1, "cpu")
    for number, run in enumerate(sweep.runs):
        _train(run, root.run(run.key), number, evaluations, steps_between, made_with)
    return folder


def _train(
    run: Run, folder: RunFolder, number: int, evaluations: int, steps_between: int, made_with: dict[str, object]
) -> None:
    rng = np.random.default_rng(number)
    attempt: Attempt = attempts.claim(folder)
    # Who trained it is gone: the calling process would count as still at work.
    write_json(attempt.process, {**attempts.identity(os.getpid()), "start_ticks": 1})
    write_json(folder.provenance, made_with)
    options = run.recipe.evaluation
    ceiling, middle = 0.7 + 0.1 * rng.random(), FLOPS_A_STEP * steps_between * (5 + 5 * rng.random())
    now, step, lines = time.time(), 0, []
    for index in range(evaluations + 1):
        for _ in range(steps_between if index else 0):
            step += 1
            lines.append(to_line({"kind": "step", "step": step, "time": now + step, "metrics": _metrics("step", step)}))
        share = 1 / (1 + (middle / (FLOPS_A_STEP * step)) ** 1.6) if step else 0.0
        counts = rng.binomial(options.samples, 0.2 + (ceiling - 0.2) * share, options.prompts)
        rate = float(counts.mean() / options.samples)
        metrics = _metrics("evaluation", step) | {"evaluation/pass_rate": rate, "evaluation/interrupted": 0.01}
        row = {"kind": "evaluation", "step": step, "time": now + step, "metrics": metrics}
        lines.append(to_line({**row, "counts": counts.tolist(), "samples": options.samples}))
    descriptor = open_for_append(folder.journal)
    append_bytes(descriptor, b"".join(lines))
    outcome.write(folder, outcome.Outcome("finished", step, "reached its budget"))


def _metrics(kind: str, step: int) -> dict[str, float]:
    """Each metric of a row of this kind, with as many digits as real ones have."""
    prefixes = ("evaluation/", "clock/") if kind == "evaluation" else ("train/", "curriculum/", "time/", "clock/")
    metrics = {name: 0.01 + step / 70_000 for name in METRICS if name.startswith(prefixes)}
    return metrics | {"clock/flops": FLOPS_A_STEP * step, "clock/samples": 512.0 * step}
