"""Whom a run imitates: episodes that are recorded, or somebody who answers."""
