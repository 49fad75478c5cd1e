"""The Tiny Recursive Model, and its variant with one latent."""
