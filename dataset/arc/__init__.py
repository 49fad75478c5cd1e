"""ARC: tasks, augmentations, and lazy sets, which are augmented when they are read."""
