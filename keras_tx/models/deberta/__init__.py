"""DeBERTa."""
