"""Environments as vectors: making, checking and saving them."""
