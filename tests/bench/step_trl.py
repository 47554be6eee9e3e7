"""`step_trl.py MODEL FOLDER LOSS SEQUENCES`: TRL's GRPOTrainer on the same work, SEQUENCES in a forward pass."""

import contextlib
import sys

import torch
from datasets import Dataset
from race import Turns
from setting import step_recipe
from transformers import TrainerCallback, TrainerState
from trl import GRPOConfig, GRPOTrainer

from rlsweep.model.load import load_model
from rlsweep.tasks.make import make_task
from rlsweep.tasks.protocol import Prompt
from rlsweep.train.curriculum import PromptStream

torch.set_num_threads(1)
source, folder, loss, sequences = sys.argv[1:]
recipe = step_recipe(loss)
task = make_task(recipe.task)
model, tokenizer = load_model(source)
tokenizer.padding_side = "left"
rollouts = recipe.batch.prompts * recipe.batch.rollouts
earned = {name: getattr(recipe.reward, name) for name in ("correct", "wrong", "truncated", "unparseable")}
turns = Turns()
turns.book(model, "generate", "sampling")
turns.book(GRPOTrainer, "_get_per_token_logps_and_entropies", "forward")
turns.book(torch.autograd, "backward", "backward")
turns.book(torch.optim.AdamW, "step", "optimizer")
passed: list[float] = []


def verifier(
    prompts: list[str], completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: object
) -> list[float]:
    """The same verifier, and the same rewards."""
    outcomes = [
        task.grade(Prompt(text, right), response, stopped=ids[-1] == tokenizer.eos_token_id)
        for text, right, response, ids in zip(prompts, answer, completions, completion_ids, strict=True)
    ]
    passed.append(outcomes.count("correct") / len(outcomes))
    return [earned[outcome] for outcome in outcomes]


class Starter(TrainerCallback):
    """Between two optimizer steps; prefetching the next batch of prompts counts as part of the step before."""

    def on_step_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        if not state.global_step:
            return  # rlsweep's loop asks for the first time after its first step
        told = {
            "sampled": rollouts,
            "trained": rollouts,
            "response_tokens": trainer._metrics["train"]["completions/mean_length"][-1],
            "pass_rate": passed[-1],
        }
        if not turns.wait(told):
            raise Stop


class Stop(Exception):
    """No more steps are wanted."""


# The same prompts in the same order: one epoch of the pool.
order = PromptStream(recipe.curriculum, task.size, recipe.seed).next_batch(task.size)
asked = [task.prompt(index) for index in order]
settings = GRPOConfig(
    output_dir=folder,
    # The work.
    loss_type=loss,
    epsilon=recipe.loss.eps_low if loss == "dapo" else 0.2,
    epsilon_high=recipe.loss.eps_high if loss == "dapo" else recipe.loss.eps_max,
    scale_rewards="batch",
    beta=0.0,
    num_generations=recipe.batch.rollouts,
    max_completion_length=recipe.sampling.max_tokens,
    temperature=recipe.sampling.temperature,
    top_k=0,
    num_iterations=1,
    per_device_train_batch_size=int(sequences),
    gradient_accumulation_steps=rollouts // int(sequences),
    shuffle_dataset=False,
    learning_rate=recipe.optimizer.lr,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=recipe.optimizer.warmup_steps,
    weight_decay=recipe.optimizer.weight_decay,
    adam_beta1=recipe.optimizer.beta1,
    adam_beta2=recipe.optimizer.beta2,
    adam_epsilon=recipe.optimizer.eps,
    max_grad_norm=recipe.optimizer.grad_clip,
    max_steps=recipe.budget.steps,
    seed=recipe.seed,
    # As fast as it goes here: float32 on one core, nothing recomputed, logged, saved or shown.
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    optim="adamw_torch_fused",
    logging_strategy="no",
    save_strategy="no",
    eval_strategy="no",
    report_to="none",
    disable_tqdm=True,
    logging_nan_inf_filter=False,
    dataloader_pin_memory=False,
)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=verifier,
    args=settings,
    train_dataset=Dataset.from_dict(
        {"prompt": [each.text for each in asked], "answer": [each.answer for each in asked]}
    ),
    processing_class=tokenizer,
    callbacks=[Starter()],
)
with contextlib.suppress(Stop):
    trainer.train()
