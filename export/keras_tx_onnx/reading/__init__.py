"""The Keras side of the export: the functional graph, the traces of layers and their symbolic sizes."""
