"""Trained models as files for ONNX Runtime and torch.export, tried against the model."""
