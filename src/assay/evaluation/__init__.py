"""Evaluating, comparing and plotting runs."""
