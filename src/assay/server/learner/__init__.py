"""The learner of one policy: segments in, model versions out. It alone needs torch."""
