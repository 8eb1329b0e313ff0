"""A class for every registered algorithm, with its settings as typed arguments."""
