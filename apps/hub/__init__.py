"""The Hugging Face Hub: fetch checkpoints from it, and share a run on it with a card."""
