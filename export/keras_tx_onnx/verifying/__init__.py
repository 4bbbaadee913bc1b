"""The comparison of an exported graph with its Keras model."""
