"""The generated modules are those of assay.proto, and the server needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assay.server import protocol
from assay.server.errors import Reason
from assay.server.protocol import assay_pb2 as pb

SERVICES = {
    "Session": {"Register", "Open"},
    "Ingest": {"Stream", "Put"},
    "Models": {"Watch", "Fetch", "Pin", "Promote", "Rollback"},
    "Infer": {"Act"},
    "Admin": {
        "ListPolicies",
        "GetPolicy",
        "Pause",
        "Resume",
        "Drain",
        "Export",
        "Delete",
        "AddToken",
        "ListTokens",
        "RevokeToken",
    },
}
IMPORT_ALL = """
import importlib, pkgutil, sys

import assay.server.store
names = ["errors", "crc", "spec", "tensor_map", "tensors"]
names += ["protocol.assay_pb2", "protocol.assay_pb2_grpc"]
store = assay.server.store
names += [f"store.{info.name}" for info in pkgutil.iter_modules(store.__path__)]
for name in names:
    importlib.import_module(f"assay.server.{name}")
print("torch" in sys.modules)
"""


def test_generating_again_gives_the_committed_bytes(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    import importlib.metadata

    committed = Path(protocol.__file__).parent
    made_with = (committed / "assay_pb2_grpc.py").read_text()
    version = importlib.metadata.version("grpcio-tools")
    if f"GRPC_GENERATED_VERSION = '{version}'" not in made_with:
        pytest.skip(f"another version of grpcio-tools ({version}) than made the committed files")
    # What `make proto` runs, into another directory.
    root = committed.parents[3]
    lines = (root / "Makefile").read_text().splitlines()
    command = next(line for line in lines if "grpc_tools.protoc" in line).split()[1:]
    command = [word.replace("_out=src", f"_out={tmp_path}") for word in command]
    subprocess.run([sys.executable, *command], cwd=root, check=True)
    made = sorted(tmp_path.rglob("*_pb2*"))
    assert [path.name for path in made] == sorted(one.name for one in committed.glob("*_pb2*.py*"))
    for path in made:
        assert path.read_bytes() == (committed / path.name).read_bytes(), path.name


def test_the_services_are_those_of_the_design() -> None:
    services = pb.DESCRIPTOR.services_by_name
    assert {name: set(one.methods_by_name) for name, one in services.items()} == SERVICES
    assert pb.DESCRIPTOR.package == "assay.v1"


def test_the_reasons_are_those_of_the_wire() -> None:
    assert {reason.name: reason.value for reason in Reason} == dict(pb.Reason.items())


def test_a_batch_holds_nothing_that_grows_when_it_is_parsed() -> None:
    # gRPC parses a frame before anybody can look at it. Repeated messages would let two bytes on
    # the wire become a hundred in memory.
    for message in (pb.Batch.DESCRIPTOR, pb.IngestRequest.DESCRIPTOR):
        for one in message.fields:
            assert not (one.is_repeated and one.message_type), one.full_name


def test_codec_and_store_import_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
