"""Groups of ONNX nodes that several lowerings share."""
