"""The wire format: `assay.proto`, and the Python modules that `make proto` generates from it."""

# What both sides state when they open a session. It rises when an old peer would misread a new one.
PROTOCOL = 1
