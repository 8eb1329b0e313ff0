"""What happened in a study: the ledger, what it comes to, and where it is noted."""
