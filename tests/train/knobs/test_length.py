"""Both ways of length control: interruptions and the penalty."""

from dataclasses import replace
from typing import Any

import pytest

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.length import Interrupt, Penalty
from rlsweep.tasks.registers import ALPHABET


@pytest.mark.drives("length[none]", "length[interrupt]", "length[interrupt].earliest", "length[interrupt].latest")
def test_where_responses_are_interrupted(lab: Any, learned: Any) -> None:
    """Evenly between the two positions, both included; whoever has ended thinking or stopped by then goes on alone."""
    plain = lab.run(lab.base)
    assert not any(True in r.forced for g in plain.engine.groups.values() for r in g.rollouts)
    for earliest, latest in ((2, 2), (2, 5), (4, 5)):
        length = Interrupt(earliest=earliest, latest=latest, phrase="!#", end="#")
        run = lab.run(replace(lab.base, length=length, batch=Batch(prompts=6, rollouts=24)))
        starts = []
        for id_, group in run.engine.groups.items():
            positions = run.engine.requests[id_].interrupt_at
            for at, rollout in zip(positions, group.rollouts, strict=True):
                places = [place for place, forced in enumerate(rollout.forced) if forced]
                response = lab.text(rollout.tokens)
                due = len(response) > at and "#" not in response[:at]
                assert places == ([at, at + 1] if due else [])
                assert all(rollout.logprobs[place] == 0 for place in places)
                assert not due or response[at : at + 2] == "!#"
                starts += places[:1]
        assert set(starts) == set(range(earliest, latest + 1)) and len(starts) > 40
        first = [r for g in run.batch(0) for r in g.rollouts]
        assert run.steps[0]["train/interrupted"] == sum(True in r.forced for r in first) / len(first)
        expected = learned(run, 1)
        trained = [g for g, kept in zip(run.batch(1), expected.kept, strict=True) if kept]
        assert expected.tokens == sum(r.forced.count(False) for g in trained for r in g.rollouts)
        assert any(True in r.forced for g in trained for r in g.rollouts)


@pytest.mark.drives("length[interrupt].phrase", "length[interrupt].end")
def test_what_interrupts_and_what_ends_thinking(lab: Any) -> None:
    """`phrase` is what is forced. `end` decides who is spared: those who have written it by then, and hardly one of
    them has written '='."""
    spared = []
    for phrase, end in (("#", "#"), ("so#", "#"), ("so=", "=")):
        length = Interrupt(earliest=5, latest=5, phrase=phrase, end=end)
        run = lab.run(replace(lab.base, length=length, budget=Budget(steps=1)))
        spared.append(0)
        for group in run.engine.groups.values():
            for rollout in group.rollouts:
                response = lab.text(rollout.tokens[:5])
                due = len(rollout.tokens) > 5 and end not in response
                forced = [ALPHABET[t] for t, f in zip(rollout.tokens, rollout.forced, strict=True) if f]
                assert "".join(forced) == (phrase if due else "")
                spared[-1] += len(rollout.tokens) > 5 and not due
    assert spared[0] == spared[1] > 10 * spared[2]


@pytest.mark.drives("length[penalty]", "length[penalty].limit", "length[penalty].ramp")
def test_the_penalty(lab: Any, learned: Any) -> None:
    """Right answers of T tokens lose clip((T - limit + ramp) / ramp, 0, 1); the same groups are kept."""
    recipe = replace(lab.base, batch=Batch(prompts=6, rollouts=32), budget=Budget(steps=1))
    plain = lab.run(recipe)
    kept, means = learned(plain, 0).kept, set()
    for limit, ramp in ((8, 4), (8, 8), (10, 4)):
        run = lab.run(replace(recipe, length=Penalty(limit=limit, ramp=ramp)))
        assert run.batch(0) == plain.batch(0)
        expected = learned(run, 0)
        assert expected.kept == kept
        lost = 0.0
        for group in run.batch(0):
            for rollout, outcome in zip(group.rollouts, group.outcomes, strict=True):
                if outcome == "correct":
                    lost += min(1.0, max(0.0, (len(rollout.tokens) - limit + ramp) / ramp))
        assert lost > 0
        moved = plain.steps[0]["train/reward"] - run.steps[0]["train/reward"]
        assert moved == pytest.approx(lost / (6 * 32))
        means.add(round(moved, 9))
        assert lab.apart(plain.gradients[0], run.gradients[0]) > 1e-3
    assert len(means) == 3
