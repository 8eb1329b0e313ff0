"""Plot a run."""

import argparse

import matplotlib.pyplot as plt

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--run")
    plt.plot([0.0], label=parser.parse_args().run)
