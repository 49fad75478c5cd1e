"""Training: configuration, optimizers, schedule, checkpoints and metrics."""
