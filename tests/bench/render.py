"""`docs/benchmarks.md` from `results.json`. Every number comes from there."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs" / "benchmarks.md"
PHASES = ("sampling", "forward", "backward", "optimizer")
Answers = Sequence[Mapping[str, Any]]


def main() -> None:
    """Write the document again."""
    DOCUMENT.write_text(render(json.loads((HERE / "results.json").read_text(encoding="utf-8"))), encoding="utf-8")


def render(results: Mapping[str, Any]) -> str:
    """The whole document."""
    parts = (_introduction, _step, _sampling, _help, _plan, _tracking, _report, _memory)
    blocks = "\n\n".join(part(results).strip() for part in parts).split("\n\n")
    return "\n\n".join(block.strip() if block[:1] in "#|" else _filled(block) for block in blocks) + "\n"


def _filled(paragraph: str) -> str:
    """Lines of at most 120 characters, whatever the numbers in them."""
    return textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)


def _introduction(results: Mapping[str, Any]) -> str:
    made = results["made"]
    load = f"{made['load_before']:.1f} before, {made['load_after']:.1f} after"
    packages = ", ".join(f"{name} {version}" for name, version in made["packages"].items())
    changed = " with uncommitted changes" if made["dirty"] else ""
    return f"""# Benchmarks

Written by `make bench` on {made["date"]}, in {made["minutes"]:.0f} minutes, from commit {made["commit"][:10]}{changed}.
The scripts lie in `tests/bench`, the numbers in `tests/bench/results.json`.

Machine: {made["cpu"]}, {made["cores"]} cores, no GPU used; load {load}. Python {made["python"]},
{packages}.

One thread, one measurement at a time. What is compared takes turns, step by step or call by call, and a ratio is that
of the two measurements of one round: what slows a shared machine for longer than a round slows both sides. Given are
the median and, in brackets, the least and the most of all rounds. CPU seconds are those of the process, all its
threads and both user and system time; they too depend on what else runs on the cores, so **only the ratios should be
compared with another machine's**.
"""


def _step(results: Mapping[str, Any]) -> str:
    sides = results["step_dapo"]
    trl, equal, dropped = sides["TRL"], sides["nothing dropped"], sides["zero variance dropped"]
    tables = "\n".join(
        f"""{loss.upper()}, {len(results[f"step_{loss}"]["TRL"])} rounds:

{_step_table(results[f"step_{loss}"])}"""
        for loss in ("dapo", "cispo")
    )
    settings = results["trl_settings"]
    best = results["trl_sequences"]
    tried = ", ".join(f"{number}: {_spread(_column(settings[number], 'cpu_s'), 3)}" for number in settings)
    gap = median(_column(trl, "cpu_s")) - median(_column(equal, "cpu_s"))
    saved = ", ".join(
        f"{name} {(_phase(trl, name) - _phase(equal, name)) / gap:.0%}" for name in (*PHASES[:3], "the rest")
    )
    trained = fmean(_column(dropped, "trained")) / fmean(_column(dropped, "sampled"))
    return f"""## An RL step, against TRL

`rlsweep.train.loop` against `GRPOTrainer` of TRL {results["made"]["packages"]["trl"]}: the embedded model
(about 100,000 parameters, float32), the task of registers with the same verifier, 64 prompts x 8 responses of at most
20 tokens at temperature 1, synchronous: each step samples with the current weights, then trains on all of it in one
AdamW update. The loss is the same, with the same clipping interval and averaged over tokens; the prompts are the same
in the same order. The learning rate is so small that both sides sample from the same policy throughout. Steps include
everything: grading, advantages, metrics, our row in the journal, and the samples that are written every tenth step.

{tables}
*Nothing dropped* trains on as many sequences as TRL under the same loss; a plain loop, the prototype of this package,
reached 1.8. The arithmetic is less: a prompt is computed once for its 8 responses, and so are responses to a prompt
that are equal. Of a batch's {results["sampling"]["distinct"]} are distinct, because the answers of this task are short;
long ones hardly repeat, and the line *each response by itself* shows what is left then. *Zero variance dropped*
trains on the groups whose answers differ, {trained:.0%} of all at this policy, and gives the same gradient up to its
scale, since the others have no advantage; TRL trains on all. The prototype reached 2.5.

Where the CPU seconds of a step go (DAPO; medians, in milliseconds; the loss itself counts as the rest):

{_phase_table(sides)}
Of what a step of TRL costs more than ours at equal work: {saved}.

TRL's settings are the fastest found: no gradient checkpointing, fused AdamW, no logging, saving, evaluation or progress
bar, no reference model, old log-probabilities not computed (it knows that it is on policy). Sequences in a forward pass
were tried in this run (CPU seconds a step); {best} was taken: {tried}. Tried before and slower: gradient checkpointing
(TRL's default), a static cache, continuous batching (more than ten times slower on a CPU).
"""


def _step_table(sides: Mapping[str, Answers]) -> str:
    rows = []
    for name, answers in sides.items():
        rows.append(
            (
                name if name == "TRL" else f"rlsweep, {name}",
                _spread(_column(answers, "cpu_s"), 3),
                _spread(_column(answers, "wall_s"), 3),
                "1" if name == "TRL" else f"**{_spread(ratios(sides['TRL'], answers), 2)}**",
                f"{fmean(_column(answers, 'trained')):.0f} of {fmean(_column(answers, 'sampled')):.0f}",
                f"{fmean(_column(answers, 'response_tokens')):.2f}",
            )
        )
    heads = ("", "CPU s a step", "wall s a step", "TRL's CPU s / these", "sequences trained", "tokens a response")
    return _table(heads, rows)


def _phase_table(sides: Mapping[str, Answers]) -> str:
    rows = []
    for phase in (*PHASES, "the rest"):
        cells = []
        for answers in sides.values():
            cost, whole = _phase(answers, phase), median(_column(answers, "cpu_s"))
            cells.append(f"{1000 * cost:.1f} ({cost / whole:.0%})")
        rows.append((phase, *cells))
    names = [name if name == "TRL" else f"rlsweep, {name}" for name in sides]
    return _table(("phase", *names), rows)


def _phase(answers: Answers, phase: str) -> float:
    """Median CPU seconds of a phase; the rest is what no phase has."""
    if phase == "the rest":
        return median(answer["cpu_s"] - sum(answer["phases"].values()) for answer in answers)
    return median(answer["phases"][phase] for answer in answers)


def _sampling(results: Mapping[str, Any]) -> str:
    sides = results["sampling"]["sides"]
    rows = []
    for name, answers in sides.items():
        rates = [answer["samples"] / answer["cpu_s"] for answer in answers]
        walls = [answer["samples"] / answer["wall_s"] for answer in answers]
        again = "1" if name == "rlsweep" else _spread(ratios(answers, sides["rlsweep"]), 2)
        mean = sum(_column(answers, "tokens")) / sum(_column(answers, "samples"))
        rows.append((name, _spread(rates, 0), _spread(walls, 0), again, f"{mean:.2f}"))
    heads = ("", "samples a CPU second", "samples a second", "CPU s / rlsweep's", "tokens a response")
    return f"""## Sampling, against `transformers.generate`

The same 64 prompts x 8 responses of at most 20 tokens, at temperature 1 with nothing cut off the distribution;
{len(sides["rlsweep"])} rounds. The local engine always records the log-probability of every token. `generate` does so
only if it keeps the logits of every step (last row), from which they are then computed.

{_table(heads, rows)}
What differs: the prompt, and what responses to it have in common so far, is computed once and not 8 times; finished
responses leave the batch (`generate` goes on with all until the last has ended), and no processors or stopping
criteria stand between tokens.
"""


def _help(results: Mapping[str, Any]) -> str:
    sides = results["help"]
    base = sides["import click"]
    rows = [
        (
            f"`{name}`" if name.startswith("rlsweep") else f'`python -c "{name}"`',
            *(_spread([1000 * value for value in _column(answers, key)], 0) for key in ("cpu_s", "wall_s")),
            *(_spread(ratios(answers, base, key), 2) for key in ("cpu_s", "wall_s")),
        )
        for name, answers in sides.items()
    ]
    heads = ("", "CPU ms", "wall ms", "CPU / `import click`", "wall / `import click`")
    return f"""## `rlsweep --help`

Against importing click, the library it is made with; {len(base)} rounds.

{_table(heads, rows)}
Commands are imported when they are called, so the help page costs click, its own layout and the entry script.
"""


def _plan(results: Mapping[str, Any]) -> str:
    answers = results["plan"]["plan"]
    return f"""## `rlsweep plan` of 10,000 runs

Four losses x five learning rates x two normalizations x 250 seeds in an empty root; {len(answers)} rounds:
{_spread(_column(answers, "cpu_s"), 2)} CPU s, {_spread(_column(answers, "wall_s"), 2)} s, {_peak(answers)} MiB at most.
"""


def _tracking(results: Mapping[str, Any]) -> str:
    sides = results["tracking"]
    rows = []
    for name, answers in sides.items():
        rates = [answer["points"] / answer["cpu_s"] for answer in answers]
        walls = [answer["points"] / answer["wall_s"] for answer in answers]
        rows.append((f"`{name}`", f"{answers[0]['points']:,}", _spread(rates, 0), _spread(walls, 0)))
    pairs = [
        (theirs["cpu_s"] / theirs["points"]) / (ours["cpu_s"] / ours["points"])
        for ours, theirs in zip(sides["rlsweep sync"], sides["log_batch"], strict=True)
    ]
    return f"""## Journal to MLflow

Journals of three runs of 200 steps to a new SQLite store, {len(pairs)} rounds, against a loop of
`MlflowClient.log_batch` with 1,000 metrics a call. `sync` also sends parameters, tags and artifacts, and notes in the
store how far it came, so that it can be killed and go on; it leaves out clocks that stand twice.

{_table(("", "points", "points a CPU second", "points a second"), rows)}
A point costs the loop {_spread(pairs, 2)} times the CPU that it costs `sync`. Inside MLflow's `log_batch` are
{_share(sides["rlsweep sync"])} of the CPU seconds of `sync` and {_share(sides["log_batch"])} of the loop's.
"""


def _share(answers: Answers) -> str:
    return f"{median(ratios(answers, answers, 'log_batch_s', 'cpu_s')):.0%}"


def _report(results: Mapping[str, Any]) -> str:
    status, report = results["status"]["status"], results["report"]["report"]
    whole = median(_column(report, "cpu_s"))
    names = {"reading": "reading journals", "fitting": "fits", "comparing": "comparisons", "drawing": "plots and page"}
    parts = {text: median(answer["told"][name] for answer in report) for name, text in names.items()}
    parts["start and the rest"] = whole - sum(parts.values())
    where = ", ".join(f"{name} {cost / whole:.0%}" for name, cost in parts.items())
    rows = [
        (
            f"`rlsweep {name}`",
            _spread(_column(answers, "cpu_s"), 2),
            _spread(_column(answers, "wall_s"), 2),
            _peak(answers),
        )
        for name, answers in (("status", status), ("report", report))
    ]
    return f"""## `rlsweep status` and `rlsweep report`

A sweep of {results["synthetic"]["runs"]} runs (20 variants, 5 seeds) of 2,000 steps and 200 evaluations of 512 prompts
each, {results["synthetic"]["bytes"] / 1e6:.0f} MB of journals; {len(status)} and {len(report)} rounds.

{_table(("", "CPU s", "wall s", "peak MiB"), rows)}
Where the CPU seconds of `report` go: {where}.
"""


def _memory(results: Mapping[str, Any]) -> str:
    trainer = results["trainer"]["trainer"]
    rows = [
        (f"`python -m rlsweep.train`, scale tiny, {results['trainer_steps']} steps, two evaluations", _peak(trainer)),
        ("of this, importing torch, transformers and accelerate", _peak(results["trainer"]["imports"])),
        ("`rlsweep report` of 100 runs", _peak(results["report"]["report"])),
        ("`rlsweep status` of 100 runs", _peak(results["status"]["status"])),
        ("`rlsweep plan` of 10,000 runs", _peak(results["plan"]["plan"])),
        ("`rlsweep --help`", _peak(results["help"]["rlsweep --help"])),
    ]
    return f"""## Peak memory

The largest resident set of the process.

{_table(("", "MiB"), rows)}"""


def ratios(above: Answers, below: Answers, key: str = "cpu_s", other: str | None = None) -> list[float]:
    """Round by round, so that what slowed both sides cancels; `other` is the key below where it is another one."""
    return [a[key] / b[other or key] for a, b in zip(above, below, strict=True)]


def _column(answers: Answers, key: str) -> list[float]:
    return [answer[key] for answer in answers]


def _spread(values: Sequence[float], digits: int) -> str:
    """Median, least and most."""
    middle, least, most = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} [{least}, {most}]"


def _peak(answers: Answers) -> str:
    return f"{max(_column(answers, 'peak_mib')):.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
