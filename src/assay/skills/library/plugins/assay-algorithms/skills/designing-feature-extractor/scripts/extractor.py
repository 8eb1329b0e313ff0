"""Show the encoder that an environment's observations get: parts, widths, parameters.

python extractor.py CartPole-v1 [--hidden 64,64] [--cnn nature] [--network simba]
"""

from __future__ import annotations

import argparse
import sys

from assay.core.errors import AssayError
from assay.envs.make import make_vector
from assay.networks.encoders import make_encoder


def main() -> int:
    """Build the encoder and print what is in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--hidden", default="64,64", help="widths of the trunk")
    parser.add_argument("--cnn", default="nature", help="nature or impala")
    parser.add_argument("--network", default="mlp", help="mlp, simba or package.module:Name")
    given = parser.parse_args()
    try:
        with make_vector(given.env, 1) as envs:
            space = envs.spaces.observation
        widths = [int(word) for word in given.hidden.split(",") if word]
        net = make_encoder(space, hidden=widths, cnn=given.cnn, network=given.network)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for entry in getattr(net, "entries", ()):
        print(f"trunk: {entry.key or 'observation'}: {entry.width} numbers")
    for key, cnn in zip(getattr(net, "image_keys", ()), getattr(net, "cnns", ()), strict=True):
        print(f"image: {key or 'observation'}: {cnn.out_features} features")
    print(f"features: {net.out_features}")
    print(f"parameters: {sum(one.numel() for one in net.parameters())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
