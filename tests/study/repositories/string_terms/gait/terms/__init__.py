"""Terms of the managers."""
