"""Measurements. Each prints what it measured; none is a test."""
