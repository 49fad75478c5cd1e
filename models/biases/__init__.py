"""What attention adds to the scores of two positions."""
