"""The run directory, checkpoints, metrics, sinks and provenance; reading needs no torch."""
