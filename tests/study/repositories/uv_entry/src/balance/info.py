"""Say what is installed."""

import gymnasium


def main() -> None:
    print(gymnasium.__version__)
