"""What samples rollouts: the engine protocol and its engines."""
