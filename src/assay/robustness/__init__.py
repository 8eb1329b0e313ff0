"""What is left of a run where the world differs from its training, or works against it."""
