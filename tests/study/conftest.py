"""Makes this directory's helpers importable from the directories below it."""
