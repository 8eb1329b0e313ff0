"""Agents that stride."""
