"""Keras models to verified ONNX folders."""

from keras_tx_onnx.callback import ExportCallback
from keras_tx_onnx.coverage import coverage
from keras_tx_onnx.export import export_onnx
from keras_tx_onnx.quantize import Quantized, quantize
from keras_tx_onnx.reading.registry import lowers
from keras_tx_onnx.report import Report
from keras_tx_onnx.verifying.folder_comparison import FolderComparison, compare

__all__ = [
    "ExportCallback",
    "FolderComparison",
    "Quantized",
    "Report",
    "compare",
    "coverage",
    "export_onnx",
    "lowers",
    "quantize",
]
