"""The files of a study: what they hold, and how they are read and written."""
