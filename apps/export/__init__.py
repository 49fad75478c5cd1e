"""Trained models as files for ONNX Runtime, tried against the model."""
