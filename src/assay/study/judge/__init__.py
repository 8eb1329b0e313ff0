"""What the evidence allows to say, and whether all of it holds."""
