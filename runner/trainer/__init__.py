"""The training loop: optimizer steps, exact evaluation, metrics, checkpoints."""
