"""Environments: making them, stepping many at once, saving and checking them.

`make.make_vector` is the way in; what it returns is a `vector.Vector`.
"""
