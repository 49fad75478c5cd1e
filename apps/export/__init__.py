"""Export trained models to files for ONNX Runtime, checked against the model."""
