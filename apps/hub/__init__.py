"""The Hugging Face Hub: checkpoints from there, and a run shared there with a card."""
