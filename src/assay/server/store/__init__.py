"""The durable store: segment files with what clients sent, and a registry of everything else."""
