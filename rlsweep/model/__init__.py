"""A Hugging Face folder and what is computed with it: log-probabilities, the float32 head, FLOPs."""
