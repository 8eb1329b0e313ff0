"""The members of a gym."""
