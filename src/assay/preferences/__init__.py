"""Learn a reward from comparisons: segments of behaviour, answers, a model, and a loop of these."""
