"""Environments: making them, stepping many at once, saving and checking them.

`make.make_vector` is the entry point; it returns a `vector.Vector`.
"""
