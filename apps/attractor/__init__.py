"""TRM with a fixed point in place of its inner updates."""
