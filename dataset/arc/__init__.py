"""ARC: tasks, augmentation, augmentation on the fly."""
