"""What runs left behind, read and looked at."""
