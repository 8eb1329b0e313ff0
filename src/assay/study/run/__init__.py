"""The one path on which an experiment is started, watched and put on record."""
