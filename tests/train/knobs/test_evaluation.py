"""Knobs of the evaluation, which measures and changes nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.off_policy import Pipeline, Ppo


@pytest.mark.drives("evaluation.every", "evaluation.prompts", "evaluation.samples", "evaluation.temperature")
@pytest.mark.parametrize("scheme", [Pipeline(k=1), Ppo(k=3)], ids=str)
def test_evaluation(lab: Any, scheme: Any) -> None:
    """Rows stand where `every` says and hold what the others say; how a policy is measured never changes it."""
    recipe = replace(lab.base, off_policy=scheme, budget=Budget(steps=5))
    evaluations = [
        Evaluation(every=2, prompts=3, samples=4, temperature=1.0),
        Evaluation(every=3, prompts=5, samples=2, temperature=0.5),
    ]
    runs = [lab.run(replace(recipe, evaluation=each)) for each in evaluations]
    assert torch.equal(runs[0].flat(5), runs[1].flat(5)) and runs[0].engine.groups == runs[1].engine.groups
    for run, options, steps in zip(runs, evaluations, ([0, 2, 4, 5], [0, 3, 5]), strict=True):
        assert [row["step"] for row in run.rows("evaluation")] == steps
        assert [row.get("off_schedule", False) for row in run.rows("evaluation")] == [step == 5 for step in steps]
        held_out = [prompt.text for prompt in run.state.task.held_out(options.prompts)]
        for row, (version, requests, groups) in zip(run.rows("evaluation"), run.engine.evaluations, strict=True):
            assert version == row["step"] and row["samples"] == options.samples
            assert [lab.text(request.prompt) for request in requests.values()] == held_out
            asked = [run.asked(requests[i], groups[i]) for i in requests]
            assert row["counts"] == [each.outcomes.count("correct") for each in asked]
            rate = sum(row["counts"]) / (options.prompts * options.samples)
            assert row["metrics"]["evaluation/pass_rate"] == pytest.approx(rate)
            assert len(row["counts"]) == options.prompts
            model = run.model(version)
            for each in asked:
                assert len(each.rollouts) == options.samples
                rollout = each.rollouts[0]
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([[*each.prompt, *rollout.tokens]])).logits[0, 7:-1]
                expected = torch.log_softmax(logits / options.temperature, -1)[
                    range(len(rollout.tokens)), rollout.tokens
                ]
                assert (torch.tensor(rollout.logprobs) - expected).abs().max() < 1e-4
