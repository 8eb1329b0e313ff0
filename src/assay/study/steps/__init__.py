"""What a study does next, and who does it."""
