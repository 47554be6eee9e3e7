"""The output head in the precision that the recipe names, one function for trainer and generator (ScaleRL 3.2)."""

import torch
from torch.nn import functional
from transformers import PreTrainedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def body(model: PreTrainedModel, dtype: str, **inputs: object) -> torch.Tensor:
    """Last hidden states [N, L, width] of `model`, without its head, computed in `dtype` on float32 parameters."""
    device = next(model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        hidden: torch.Tensor = model.base_model(**inputs).last_hidden_state
    return hidden


def head_logits(model: PreTrainedModel, hidden: torch.Tensor, dtype: str) -> torch.Tensor:
    """Logits [..., vocabulary] in float32 of hidden states [..., width]; the product itself is made in `dtype`.

    The stored weight stays as it is: with tied embeddings it is also the input table.
    """
    weight = model.get_output_embeddings().weight
    return functional.linear(hidden.to(DTYPES[dtype]), weight.to(DTYPES[dtype])).float()
