"""BERT, RoBERTa, DistilBERT and sentence encoders."""
