"""What a model predicts from the answer of its trunk: tokens, Q values and more."""
