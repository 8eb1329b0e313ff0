"""Encoders, heads, normalisers and the bridge to torch-free inference."""
