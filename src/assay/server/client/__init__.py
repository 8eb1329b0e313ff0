"""The client of the training server: it decides locally, and never stops the system it is in."""
