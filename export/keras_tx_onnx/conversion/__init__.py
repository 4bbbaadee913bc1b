"""Conversion by tf2onnx of layers that the exporter cannot lower."""
