"""Samples: rollouts for people to read, in whole files of JSON lines such as `samples/evaluation-000100.jsonl`."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_origin, get_type_hints

from rlsweep.errors import RlsweepError
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import encode, write_text
from rlsweep.store.layout import RunFolder

Purpose = Literal["train", "evaluation"]
_NAME = re.compile(r"(train|evaluation)-(\d{6,})\.jsonl")


@dataclass(frozen=True)
class Sample:
    """One rollout, as a line holds it. Spans count the response's tokens from 0 and don't hold their end."""

    step: int
    """Optimizer steps done: the version that was evaluated, or that training on the rollout made."""
    purpose: str
    """train or evaluation."""
    prompt_index: int
    """Place of the prompt in the training pool, or in the evaluation split."""
    rollout: int
    """Place in its group: the rollouts of one prompt."""
    prompt: str
    """What the model read."""
    response: str
    """What it wrote, forced tokens included, special tokens visible."""
    answer: str | None
    """What the verifier finds in it as the answer."""
    reference: str
    """The right answer."""
    outcome: str
    """correct, wrong, truncated or unparseable."""
    reward: float
    """As training computes it, length penalty included."""
    finish: str
    """stop: the model ended it; length: the token limit did."""
    interrupted: bool
    """Whether thinking was cut by a forced phrase."""
    tokens: int
    """Tokens of the response, end of sequence included."""
    versions: list[list[int]]
    """Spans [version, start, end): which policy sampled which tokens."""
    forced: list[list[int]]
    """Spans [start, end) of forced tokens, which the loss leaves out; all other tokens count."""
    advantage: float | None
    """What training gave it; None where its group was filtered, and in an evaluation."""


@dataclass(frozen=True)
class SampleFile:
    """The samples of one evaluation, or of one training step."""

    path: Path
    step: int
    purpose: Purpose


def write(run: RunFolder, attempt: Attempt, purpose: Purpose, step: int, samples: Sequence[Sample]) -> None:
    r"""Write the samples of a step, in the place of what an earlier try at it wrote.

    A lone surrogate, which UTF-8 can't hold, is written as the text `\ud800`. Superseded where a newer attempt owns
    the run.
    """
    attempt.require_owner()
    run.samples.mkdir(exist_ok=True)
    lines = [encode({name: _writable(value) for name, value in asdict(sample).items()}) + "\n" for sample in samples]
    write_text(run.samples / f"{purpose}-{step:06d}.jsonl", "".join(lines))


def _writable(value: object) -> object:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def every(run: RunFolder) -> list[SampleFile]:
    """All sample files of a run, oldest first; those of a training step before those of the evaluation after it."""
    try:
        names = os.listdir(run.samples)
    except FileNotFoundError:
        return []
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    found = [SampleFile(run.samples / match[0], int(match[2]), cast(Purpose, match[1])) for match in matches]
    return sorted(found, key=lambda file: (file.step, file.purpose == "evaluation"))


def newest_evaluation(run: RunFolder) -> SampleFile | None:
    """Samples of the last evaluation, or None."""
    return next((file for file in reversed(every(run)) if file.purpose == "evaluation"), None)


def read(file: SampleFile) -> list[Sample]:
    """Its samples. RlsweepError where a line is damaged."""
    found = []
    for number, line in enumerate(file.path.read_bytes().splitlines(), 1):
        sample = _parse(line)
        if sample is None:
            raise RlsweepError(f"{file.path}:{number}: not a whole sample; the file is damaged")
        found.append(sample)
    return found


def visible(text: str) -> str:
    r"""`text` with all that has no glyph or moves a terminal written as an escape (`\x1b`); newlines stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


_KINDS = {name: list if get_origin(hint) is list else hint for name, hint in get_type_hints(Sample).items()}


def _parse(line: bytes) -> Sample | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not all(
        name in row and isinstance(row[name], kind) for name, kind in _KINDS.items()
    ):
        return None
    if not (_are_spans(row["versions"], 3) and _are_spans(row["forced"], 2)):
        return None
    return Sample(**{name: row[name] for name in _KINDS})


def _are_spans(found: list[Any], width: int) -> bool:
    return all(
        isinstance(span, list) and len(span) == width and all(isinstance(each, int) for each in span) for span in found
    )
