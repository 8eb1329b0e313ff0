"""Members."""


def make(name):
    return {"name": name}
