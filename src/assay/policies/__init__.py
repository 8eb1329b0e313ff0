"""Torch-free forward passes and action sampling: the acting path on a CPU."""
