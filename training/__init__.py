"""The trainer: configuration, optimizers, schedule, state, checkpoints and tracking."""
