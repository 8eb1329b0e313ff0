"""Makes the samples beside it importable from the directories below."""
