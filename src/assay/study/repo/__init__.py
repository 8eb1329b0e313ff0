"""The static audit of a foreign repository; nothing of it is imported or run."""
