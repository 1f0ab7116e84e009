"""Ranges, quantization schemes and measured loss; names no vendor."""
