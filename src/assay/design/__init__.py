"""The design desk: a problem as a file, checked, matched with algorithms, and made to run."""
