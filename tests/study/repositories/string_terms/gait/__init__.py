"""Gaits for a biped."""
