"""What is wrong with a run, by what it left behind. Nothing here needs torch."""
