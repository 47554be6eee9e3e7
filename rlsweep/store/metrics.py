"""The one schema of metrics: every name that may stand in a journal, with its unit and what it means."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Unit of a metric ("1": a pure number) and what it means, in one line."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    "train/loss": Metric("1", "loss of the step, after aggregation"),
    "train/reward": Metric("1", "mean reward of the rollouts that arrived, before any filter"),
    "train/pass_rate": Metric("fraction", "share of correct rollouts among those that arrived, before any filter"),
    "train/grad_norm": Metric("1", "norm of the gradient over all parameters, before clipping"),
    "train/lr": Metric("1", "learning rate of the step"),
    "train/entropy": Metric("nats", "mean entropy of the policy's next-token distribution over trained tokens"),
    "train/clip_fraction": Metric("fraction", "share of trained tokens whose ratio was capped or gradient cut"),
    "train/mismatch_mean": Metric("nats", "mean |log pi - log mu| over trained tokens, staleness included"),
    "train/mismatch_max": Metric("nats", "largest |log pi - log mu| over trained tokens, staleness included"),
    "train/effective_sample_size": Metric(
        "fraction", "(sum w)^2 / (n sum w^2) of the importance ratios of the step; 1 on policy"
    ),
    "train/groups_generated": Metric("groups", "groups that arrived for the step"),
    "train/groups_trained": Metric("groups", "groups left after all filters"),
    "train/groups_zero_variance": Metric(
        "groups", "groups whose rollouts were all right or all wrong, dropped unless the recipe keeps them"
    ),
    "train/response_tokens": Metric("tokens", "mean length of a response, before any filter"),
    "train/truncated": Metric("fraction", "share of rollouts cut off at the token limit"),
    "train/interrupted": Metric("fraction", "share of rollouts whose thinking was ended by the interruption phrase"),
    "train/verifier_errors": Metric(
        "rollouts", "rollouts on which the verifier raised, hung or returned no outcome; they count as unparseable"
    ),
    "train/lag_mean": Metric("versions", "mean age of trained tokens, in policy versions"),
    "train/lag_max": Metric("versions", "age of the oldest trained token, in policy versions"),
    "curriculum/epoch": Metric("epochs", "epoch of the batch that was admitted last, counted from 0"),
    "curriculum/exclusion_lifted": Metric("0 or 1", "1 where all prompts are asked because all would be left out"),
    "curriculum/excluded_prompts": Metric(
        "prompts", "prompts that no-positive-resampling leaves out of the epoch: none of their groups is asked for"
    ),
    "time/generation_s": Metric("s", "wall time of the step that the trainer spent on or waiting for rollouts"),
    "time/training_s": Metric("s", "wall time of the step spent on loss, optimizer and publishing weights"),
    "time/generation_busy_s": Metric(
        "s", "seconds that the engine was sampling since the row before, whether or not the trainer waited for it"
    ),
    "time/training_busy_s": Metric("s", "seconds of the step inside filters, loss, backward pass and optimizer"),
    "time/evaluation_busy_s": Metric("s", "seconds that the engine was sampling for the evaluation"),
    "clock/samples": Metric("rollouts", "rollouts generated for training since step 0"),
    "clock/tokens": Metric("tokens", "tokens generated for training since step 0"),
    "clock/flops": Metric("FLOP", "floating-point operations of generation and training since step 0"),
    "clock/device_hours": Metric(
        "device-hours",
        "allocated devices x wall time since the first rollout, idle included, without evaluations and saving",
    ),
    "clock/startup_hours": Metric("device-hours", "devices x wall time before the first rollout, over all attempts"),
    "clock/evaluation_hours": Metric("device-hours", "devices x wall time spent on evaluations"),
    "clock/saving_hours": Metric("device-hours", "devices x wall time spent on checkpoints"),
    "evaluation/pass_rate": Metric("fraction", "mean pass rate over the held-out prompts, one frozen policy version"),
    "evaluation/response_tokens": Metric("tokens", "mean length of a response in the evaluation"),
    "evaluation/truncated": Metric("fraction", "share of responses of the evaluation cut off at the token limit"),
    "evaluation/interrupted": Metric("fraction", "share of responses of the evaluation that were interrupted"),
    "evaluation/verifier_errors": Metric(
        "rollouts", "responses of the evaluation on which the verifier raised, hung or returned no outcome"
    ),
}


def to_markdown() -> str:
    """The schema as docs/metrics.md."""
    rows = []
    for name, metric in METRICS.items():
        meaning = metric.meaning.replace("|", "\\|")  # a bar would end the cell
        rows.append(f"| `{name}` | {metric.unit} | {meaning} |")
    return "\n".join(
        [
            "# Metrics",
            "",
            "Every name that stands in a journal and in MLflow. Made by `make docs`; a test holds it current.",
            "",
            "| name | unit | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(to_markdown(), end="")
