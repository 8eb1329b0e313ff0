"""Where transitions live between the collector and the update: NumPy storage, torch at the edge."""
