"""Small games of several players, written out: poker, matrices, and those of OpenSpiel."""
