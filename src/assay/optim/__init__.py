"""One optimizer step as one thing: the update, its rules and its compile cache."""
