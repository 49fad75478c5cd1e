"""What every process needs, and nothing about puzzles or models."""
