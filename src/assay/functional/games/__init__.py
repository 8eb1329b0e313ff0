"""Games as arrays, and what solves and measures them; NumPy and SciPy, no torch."""
