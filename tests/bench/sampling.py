"""`sampling.py MODEL ROUNDS`: 64 x 8 responses by the local engine and by `generate` of transformers, in turns."""

import json
import sys

import torch
from race import in_turns
from setting import step_recipe

from rlsweep.model.load import load_model
from rlsweep.rollout.local import LocalEngine
from rlsweep.tasks.make import make_task
from rlsweep.train.intake import Tokens, requests

torch.set_num_threads(1)
recipe = step_recipe()
count, most = recipe.batch.rollouts, recipe.sampling.max_tokens
model, tokenizer = load_model(sys.argv[1])
model.eval()
task = make_task(recipe.task)
tokens = Tokens(tokenizer, task)
prompts = [tokens.encode(task.prompt(index).text) for index in range(recipe.batch.prompts)]
assert len(set(map(len, prompts))) == 1, "prompts of one length need no padding"
ids = torch.tensor(prompts)
engine = LocalEngine(model, eos=tokens.eos, dtype=recipe.model.dtype, head_dtype=recipe.model.head_dtype)
batch = 0


def ours() -> dict[str, float]:
    """Tokens and their log-probabilities, as the trainer asks for them."""
    global batch
    batch += 1
    engine.submit(requests(recipe, range(len(prompts)), prompts, "rollout", batch, count, recipe.sampling.temperature))
    rollouts = [rollout for group in engine.collect(wait=True) for rollout in group.rollouts]
    return {"samples": len(rollouts), "tokens": sum(len(rollout.tokens) for rollout in rollouts)}


def generate(*, logprobs: bool) -> dict[str, float]:
    """The same by `generate`, which keeps log-probabilities only as the logits of every step."""
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=recipe.sampling.temperature,
            top_k=0,
            top_p=1.0,
            num_return_sequences=count,
            max_new_tokens=most,
            eos_token_id=tokens.eos,
            pad_token_id=tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_logits=logprobs,
        )
        made = found.sequences[:, ids.shape[1] :]
        if logprobs:
            logs = torch.log_softmax(torch.stack(found.logits, 1), -1)
            logs.gather(-1, made[:, :, None])
    ended = (made == tokens.eos).int()
    lengths = torch.where(ended.any(1), ended.argmax(1) + 1, made.shape[1])
    return {"samples": len(made), "tokens": int(lengths.sum())}


work = {
    "rlsweep": ours,
    "generate": lambda: generate(logprobs=False),
    "generate, log-probabilities": lambda: generate(logprobs=True),
}
sides = in_turns(work, int(sys.argv[2]), warm_up=2)
engine.submit(requests(recipe, range(len(prompts)), prompts, "rollout", 0, count, recipe.sampling.temperature))
distinct = {(group.id, rollout.tokens) for group in engine.collect(wait=True) for rollout in group.rollouts}
print(json.dumps({"sides": sides, "distinct": len(distinct)}))
