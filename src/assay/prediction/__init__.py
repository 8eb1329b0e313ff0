"""Actions for files of observations: reading them, acting without torch, writing the answers."""
