"""From what is wanted to processes on run folders: plan, submission, local runner, states. No trainer is imported."""
