"""The table of knobs: a knob that is added to a recipe needs a test in this folder that is marked with its name."""

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rlsweep.recipe.fields import field_types, sections, top_leaves
from rlsweep.recipe.key import NOT_IDENTITY

NOT_DRIVEN = {
    "task[math]": "this version can plan it but not train it",
    "task[math].dataset": "this version can plan it but not train it",
    "task[math].revision": "this version can plan it but not train it",
    "model[pretrained].revision": "names a commit on a hub, and tests have none",
}
"""Knobs that no run in this process can show, and why. What is checked before a run is tested all the same."""


def driven() -> dict[str, str]:
    """The test that drives each knob, or each choice of a knob that is a list of choices: all of this folder's files,
    whichever of them pytest was asked to run."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name, test in runpy.run_path(str(path)).items():
            marks = test.pytestmark if name.startswith("test_") and hasattr(test, "pytestmark") else []
            for knob in (knob for mark in marks if mark.name == "drives" for knob in mark.args):
                assert knob not in found, f"{knob} is driven by {found[knob]} and {name}"
                found[knob] = name
    return found


def schema_knobs() -> set[str]:
    """Each leaf of each type of each section that enters a run's key, by choices where it has them."""

    def named(path: str, hint: Any) -> set[str]:
        choices = [str(word) for option in (hint, *get_args(hint)) for word in literals(option)]
        return {f"{path}[{word}]" for word in choices} or {path}

    def literals(hint: Any) -> Sequence[Any]:
        return get_args(hint) if get_origin(hint) is Literal else ()

    found: set[str] = set()
    for name, hint in top_leaves().items():
        found |= named(name, hint) if name not in NOT_IDENTITY else set()
    for name, section in sections().items():
        for tag, section_type in section.types.items() if name not in NOT_IDENTITY else ():
            of = f"{name}[{tag}]" if tag else name
            found |= {of} if tag else set()
            for leaf, hint in field_types(section_type).items():
                found |= named(f"{of}.{leaf}", hint) if leaf != "type" else set()
    return found


def test_every_knob_of_the_schema_is_driven() -> None:
    knobs, table = schema_knobs(), driven()
    assert len(knobs) > 60
    assert knobs - set(table) - set(NOT_DRIVEN) == set(), "these need a test in this folder"
    assert (set(table) | set(NOT_DRIVEN)) - knobs == set(), "these are no knobs of the schema"
    assert not set(table) & set(NOT_DRIVEN)
