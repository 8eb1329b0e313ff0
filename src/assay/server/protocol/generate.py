"""Write the Python modules of the wire format again: `python -m assay.server.protocol.generate`."""

from __future__ import annotations

import sys
from pathlib import Path

from assay.core.errors import AssayError, MissingExtraError

SOURCE = Path(__file__).resolve().parents[3]  # the directory that holds the package `assay`
PROTO = "assay/server/protocol/assay.proto"


def generate(out: Path) -> list[Path]:
    """Compile `assay.proto` and return the files that were written.

    Args:
        out: Where the package `assay` starts; the modules land in its `server/protocol`.

    Raises:
        AssayError: The compiler refused the file; it has said why on stderr.
    """
    try:
        from grpc_tools import protoc
    except ImportError:
        raise MissingExtraError("grpcio-tools", "dev", "Compiling the wire format") from None
    # The path below SOURCE is what makes the modules import each other by their full names.
    options = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{SOURCE}", *options, PROTO]):
        raise AssayError(f"protoc refused '{PROTO}'.", "Fix what it names above.")
    stem = out / Path(PROTO).with_suffix("")
    return [stem.with_name(stem.name + end) for end in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")]


if __name__ == "__main__":
    for path in generate(SOURCE):
        sys.stdout.write(f"{path.name}\n")
