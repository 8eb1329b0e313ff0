"""A whole study in about a minute."""
