"""The ONNX side of the export: builder, editor and passes."""
