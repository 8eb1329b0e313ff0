"""The gateway: the one door of the training server. It speaks gRPC and never imports torch."""
