"""Collecting data and learning from it."""
