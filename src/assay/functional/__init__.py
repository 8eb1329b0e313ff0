"""Pure maths without state: returns, losses, distributions, targets."""
