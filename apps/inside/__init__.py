"""What a model does between a question and its answer: recordings, measures, probes, pictures."""
