"""`rlsweep samples`: what the model of a run wrote."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note

if TYPE_CHECKING:
    from rich.console import Console

    from rlsweep.store.layout import RunFolder
    from rlsweep.store.samples import Sample, SampleFile

_INDENT = 11
"""Columns before the text of a block: what it is."""


@click.command()
@click.argument("run")
@click.option("--step", type=click.IntRange(min=0), help="Those of this step [default: the newest evaluation's].")
@click.option("--wrong", is_flag=True, help="Only wrong and unparseable ones.")
@click.option("--truncated", is_flag=True, help="Only those cut at the token limit; with --wrong, these too.")
@click.option("--interrupted", is_flag=True, help="Only interrupted ones, of what the options before select.")
@click.option("--sweep", help="Sweep in which RUN is named [default: the newest].")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all that was found, nothing else.")
def samples(
    run: str,
    step: int | None,
    wrong: bool,
    truncated: bool,
    interrupted: bool,
    sweep: str | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Show what the model of RUN wrote: up to 32 rollouts of each evaluation and of every tenth training step.

    RUN is a key, its first four digits or more, variant:seed, an index as `status` prints it, or values of axes that
    leave one run (loss=cispo,seed=0). Elsewhere than on a terminal: a line of JSON a rollout, as it stands in the run's
    folder under samples:

    \b
    step, purpose   optimizer steps done; evaluation or train
    prompt_index    place in the evaluation split, or in the training pool
    rollout         place among the rollouts of the prompt
    prompt          what the model read
    response        what it wrote, forced and special tokens included
    answer          what the verifier finds in it, or null
    reference       the right answer
    outcome         correct, wrong, truncated or unparseable
    reward          as training computes it, length penalty included
    finish          stop (the model's end) or length (the token limit)
    interrupted     whether thinking was cut by a forced phrase
    tokens          tokens of the response, end of sequence included
    versions        [version, start, end): who sampled which tokens
    forced          [start, end) of tokens that the loss leaves out; all
                    others count
    advantage       null in an evaluation and where the group was filtered
    """
    from rlsweep.cli.runs import find_run
    from rlsweep.store.layout import find_root
    from rlsweep.store.samples import read

    folder = find_run(find_root(root), run, sweep)
    files = _files(folder, step)
    every = [sample for file in files for sample in read(file)]
    found = [sample for sample in every if _is_meant(sample, wrong, truncated, interrupted)]
    # ASCII alone: no terminal obeys it, whatever the model wrote.
    if as_json:
        paths = [str(file.path) for file in files]
        shown = {"run_key": folder.key, "paths": paths, "samples": [asdict(sample) for sample in found]}
        click.echo(json.dumps(shown, indent=2))
        return
    for file in files:
        note(f"run {folder.key}, {_moment(file.purpose, file.step)}: {file.path}")
    if not found:
        click.echo(f"none of these {len(every)} samples matches", err=True)
    elif sys.stdout.isatty():
        show(found)
    else:
        for sample in found:
            click.echo(json.dumps(asdict(sample)))


def show(samples: Sequence["Sample"], console: "Console | None" = None) -> None:
    """Print a block a sample, folded to the terminal's width."""
    from rich.console import Console
    from rich.text import Text

    from rlsweep.store.samples import visible

    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    console = console or Console(color_system=None if plain else "auto")
    for sample in samples:
        heading = f"{_moment(sample.purpose, sample.step)}, prompt {sample.prompt_index}, rollout {sample.rollout}"
        console.print()
        console.print(Text(f"{heading}: {visible(sample.outcome)}", style="bold", overflow="fold"))
        for name, text in _lines(sample):
            for line in Text(visible(text)).wrap(console, max(console.width - _INDENT, 1), overflow="fold"):
                console.print(Text(f"{name:<{_INDENT}}{line.plain}".rstrip(), overflow="fold"))
                name = ""


def _files(run: "RunFolder", step: int | None) -> list["SampleFile"]:
    """The files of a step, by default that of the newest evaluation. UsageError where there are none."""
    from rlsweep.errors import UsageError
    from rlsweep.store.samples import every, newest_evaluation

    files = every(run)
    if not files:
        raise UsageError(f"run {run.key} has no samples yet")
    if step is None:
        return [newest_evaluation(run) or files[-1]]
    found = [file for file in files if file.step == step]
    if not found:
        before = [file.step for file in files if file.step < step][-1:]
        after = [file.step for file in files if file.step > step][:1]
        nearest = " and ".join(map(str, before + after))
        raise UsageError(f"run {run.key} has no samples of step {step}; the nearest that has some: {nearest}")
    return found


def _is_meant(sample: "Sample", wrong: bool, truncated: bool, interrupted: bool) -> bool:
    """Outcomes add to each other, since no rollout has two; interruption may go with any of them."""
    is_wrong = wrong and sample.outcome in ("wrong", "unparseable")
    is_truncated = truncated and sample.finish == "length"
    return (is_wrong or is_truncated or not (wrong or truncated)) and (sample.interrupted or not interrupted)


def _moment(purpose: str, step: int) -> str:
    return f"evaluation of step {step}" if purpose == "evaluation" else f"training of step {step}"


def _lines(sample: "Sample") -> list[tuple[str, str]]:
    """What a block says of a sample, name and text."""
    reward = f"{sample.reward:g}"
    if sample.advantage is not None:
        reward += f", advantage {sample.advantage:.3g}"
    elif sample.purpose == "train":
        reward += ", not trained on: its group was filtered"
    end = "stopped" if sample.finish == "stop" else "cut at the token limit"
    versions = ", ".join(str(version) for version, _, _ in sample.versions)
    tokens = f"{sample.tokens}, {end}; policy version {versions}"
    if sample.interrupted:
        spans = (f"{start}" if stop == start + 1 else f"{start} to {stop - 1}" for start, stop in sample.forced)
        tokens += f"; interrupted, forced: {', '.join(spans)}"
    return [
        ("prompt", sample.prompt),
        ("response", sample.response),
        ("answer", "none found" if sample.answer is None else sample.answer),
        ("reference", sample.reference),
        ("reward", reward),
        ("tokens", tokens),
    ]
