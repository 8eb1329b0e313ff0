"""The agents."""
