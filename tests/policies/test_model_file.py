"""A model file is believed in nothing: sizes, shapes, names, numbers, digest."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.policies import description as arch
from assay.policies import layers, model_file, parts, value_layers
from assay.policies.model_file import make_snapshot, parse_snapshot, read_snapshot
from assay.policies.parts import ModelError, Shapes
from assay.server.client.policy import Policy, PolicyError

GOLDEN = Path(__file__).resolve().parents[2] / "clients" / "golden"
FILES = sorted(GOLDEN.glob("*.safetensors"))


def architecture(**changes: Any) -> arch.Architecture:
    values: dict[str, Any] = {
        "version": 7,
        "epoch": 1,
        "algorithm": "ppo",
        "observation": {"kind": "Box"},
        "action": {"kind": "Discrete"},
        "inputs": (arch.Entry(key=None, width=2),),
        "layers": (layers.Dense(weight="w", bias="b"),),
        "head": arch.Categorical(n=3),
    }
    return arch.Architecture(**(values | changes))


def arrays(**changes: Any) -> dict[str, Any]:
    values = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.zeros(3, np.float32)}
    return values | changes


def rebuild(data: bytes, change: Any) -> bytes:
    """Return a file whose header was changed as an object, with the same body."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data[8 + size :]


def test_a_file_comes_back_as_it_was_written(tmp_path):
    snapshot = make_snapshot(architecture(), arrays())
    snapshot.write(tmp_path / "m.safetensors")
    again = read_snapshot(tmp_path / "m.safetensors", snapshot.sha256.upper())
    assert again.architecture == snapshot.architecture
    assert again.sha256 == hashlib.sha256(snapshot.data).hexdigest()
    np.testing.assert_array_equal(again.arrays["w"], arrays()["w"])
    assert Policy(again).act([1.0, 0.0]) == (2, 0.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"w": np.zeros((3, 3), np.float32)}, r"'w' has the shape \[3, 3\]; expected \[3, 2\]"),
        ({"b": np.zeros(4, np.float32)}, r"'b' has the shape \[4\]; expected \[3\]"),
        ({"w": np.zeros((4, 2)), "b": np.zeros(4)}, "gives 4 numbers.*reads 3"),
        ({"more": np.zeros(1, np.float32)}, "No layer uses the tensor 'more'"),
        ({"b": np.array([0, np.nan, 0], np.float32)}, "'b' holds a number that is not finite"),
        ({"b": np.array([0, np.inf, 0], np.float32)}, "'b' holds a number that is not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(ModelError, match=words):
        make_snapshot(architecture(), arrays(**changes))


def test_a_missing_tensor_is_named():
    with pytest.raises(ModelError, match="lacks the tensor 'b'"):
        make_snapshot(architecture(), {"w": arrays()["w"]})


def test_a_tensor_belongs_to_one_layer():
    square = {"w": np.eye(3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    layer = layers.Dense(weight="w", bias="b")
    inputs = (arch.Entry(key=None, width=3),)
    make_snapshot(architecture(inputs=inputs, layers=(layer,)), square)
    with pytest.raises(ModelError, match="Two layers use the tensor 'w'"):
        make_snapshot(architecture(inputs=inputs, layers=(layer, layer)), square)


def test_another_digest_is_refused():
    data = make_snapshot(architecture(), arrays()).data
    with pytest.raises(ModelError, match="SHA-256"):
        parse_snapshot(data, "0" * 64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h["w"].update(dtype="F64"), "dtype 'F64'"),
        (lambda h: h["w"].update(shape=[2**40, 2**40]), "'w'"),
        (lambda h: h["w"].update(shape=[3, 2, 1, 1]), "one or two widths"),
        (lambda h: h["w"].update(shape=[True, 6]), "one or two widths"),
        (lambda h: h["w"].update(shape=[-3, -2]), "one or two widths"),
        (lambda h: h["w"].update(data_offsets=[0, 2**60]), "'w'"),
        (lambda h: h["w"].update(data_offsets=[0, 24]), "begins at byte|claims"),
        (lambda h: h["w"].update(extra=1), "dtype, shape and data_offsets"),
        (lambda h: h.pop("w"), "begins at byte|accounted for"),
        (lambda h: h.pop("__metadata__"), "not an Assay model"),
        (lambda h: h.update(__metadata__={"assay": 3}), "table of texts"),
        (lambda h: h.update(__metadata__={"assay": "{"}), "not JSON"),
        (lambda h: h.update(__metadata__={"assay": "[" * 200_000}), "not JSON"),
    ],
)
def test_headers_that_lie_are_refused(change, words):
    data = make_snapshot(architecture(), arrays()).data
    with pytest.raises(ModelError, match=words):
        parse_snapshot(rebuild(data, change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.update(schema_version=2), "newer Assay"),
        (lambda a: a.update(format="other"), "format"),
        (lambda a: a.update(surprise=1), "surprise"),
        (lambda a: a.update(version="7"), "version"),
        (lambda a: a["head"].update(kind="oracle"), "head"),
        (lambda a: a["head"].update(n=2**40), "head"),
        (lambda a: a["layers"][0].update(activation="softmax"), "activation"),
        (lambda a: a["layers"][0].update(kind="later"), r"layers\.0: Input tag 'later' found"),
        (lambda a: a["inputs"][0].update(width=0), "width"),
        (lambda a: a["inputs"].append(a["inputs"][0]), "different ones"),
        (lambda a: a.update(layers=[]), "layers"),
        (lambda a: a.update(layers=a["layers"] * 100), "layers"),
    ],
)
def test_descriptions_that_are_not_of_the_schema_are_refused(change, words):
    def apply(header: dict[str, Any]) -> None:
        description = json.loads(header["__metadata__"]["assay"])
        change(description)
        header["__metadata__"]["assay"] = json.dumps(description)

    with pytest.raises(ModelError, match=words):
        parse_snapshot(rebuild(make_snapshot(architecture(), arrays()).data, apply))


def with_levels(
    changes: dict[str, Any] | None = None, *, proposal: bool = False, **tensors: Any
) -> model_file.Snapshot:
    """Return a model of 4 levels, 5 cosines and 3 actions behind 2 numbers."""
    source: dict[str, Any] = {"levels": "tau"}
    found = {"phi": np.ones((2, 5)), "shift": np.zeros(2), "tau": np.linspace(0, 1, 4)}
    if proposal:
        source = {"proposal": value_layers.Proposal(weight="p", bias="q")}
        del found["tau"]
        found |= {"p": np.ones((4, 2)), "q": np.zeros(4)}
    head = (layers.Dense(weight="w", bias="b"),)
    fields = {"weight": "phi", "bias": "shift", "advantage": head} | source | (changes or {})
    return make_snapshot(
        architecture(layers=(value_layers.Levels(**fields),)), arrays() | found | tensors
    )


@pytest.mark.parametrize(
    ("proposal", "tensors", "words"),
    [
        (False, {"phi": np.ones((3, 5))}, r"'phi' has the shape \[3, 5\]; expected \[2, 5\]"),
        (False, {"phi": np.ones(2)}, r"'phi' has the shape \[2\]; expected a matrix"),
        (False, {"shift": np.zeros(3)}, r"'shift' has the shape \[3\]; expected \[2\]"),
        (False, {"tau": np.zeros((2, 2))}, r"'tau' has the shape \[2, 2\]; expected \[4\]"),
        (False, {"tau": np.array([0.5, -0.1])}, "'tau' holds a level that is not between 0 and 1"),
        (False, {"tau": np.array([0.5, 1.1])}, "'tau' holds a level that is not between 0 and 1"),
        (True, {"p": np.ones((4, 3))}, r"'p' has the shape \[4, 3\]; expected \[4, 2\]"),
        (True, {"q": np.zeros(5)}, r"'q' has the shape \[5\]; expected \[4\]"),
        (True, {"tau": np.zeros(4)}, "No layer uses the tensor 'tau'"),
    ],
)
def test_levels_that_do_not_fit_are_refused(proposal, tensors, words):
    assert Policy(with_levels(proposal=proposal)).act([1.0, 0.5])[0] == 2
    with pytest.raises(ModelError, match=words):
        with_levels(proposal=proposal, **tensors)


def test_levels_need_one_source_and_stand_last():
    with pytest.raises(ModelError, match="either levels or a proposal"):
        with_levels({"proposal": value_layers.Proposal(weight="p", bias="q")})
    with pytest.raises(ModelError, match="either levels or a proposal"):
        with_levels({"levels": None})
    layer = with_levels().architecture.layers[0]
    with pytest.raises(ModelError, match="kind 'levels' is not the last one"):
        make_snapshot(architecture(layers=(layer, layer)), arrays())
    with pytest.raises(ValueError, match="tag 'levels'"):
        value_layers.Dueling(value=(layer,), advantage=(layer,))


@pytest.mark.parametrize("wide", ["features", "cosines", "head"])
def test_levels_are_limited_by_the_widest_thing_they_make(wide):
    def shapes(levels: int) -> dict[str, tuple[int, ...]]:
        width = 4 if wide == "features" else 2
        cosines = 4 if wide == "cosines" else 1
        hidden = 4 if wide == "head" else 1
        return {
            "phi": (width, cosines), "shift": (width,), "tau": (levels,), "w": (hidden, width),
            "b": (hidden,), "w2": (3, hidden), "b2": (3,),
        }  # fmt: skip

    head = (layers.Dense(weight="w", bias="b"), layers.Dense(weight="w2", bias="b2"))
    layer = value_layers.Levels(weight="phi", bias="shift", levels="tau", advantage=head)
    inputs = (arch.Entry(key=None, width=4 if wide == "features" else 2),)
    model = architecture(inputs=inputs, layers=(layer,))
    model.check(Shapes(shapes(value_layers.MAX_CELLS // 4)))
    with pytest.raises(ModelError, match=r"levels make 4 numbers each.*at most 4194304 in all"):
        model.check(Shapes(shapes(value_layers.MAX_CELLS // 4 + 1)))


def test_levels_are_limited_by_what_they_cost():
    def shapes(levels: int) -> dict[str, tuple[int, ...]]:
        return {
            "phi": (3, 5), "shift": (3,), "tau": (levels,), "w": (128, 3), "b": (128,),
            "w1": (128, 128), "b1": (128,), "w2": (2, 128), "b2": (2,),
        }  # fmt: skip

    head = tuple(layers.Dense(weight=f"w{i}", bias=f"b{i}") for i in ("", "1", "2"))
    layer = value_layers.Levels(weight="phi", bias="shift", levels="tau", advantage=head)
    inputs = (arch.Entry(key=None, width=3),)
    values = arch.ActionValues(n=2, epsilon=0.0)
    model = architecture(inputs=inputs, layers=(layer,), head=values)
    most = value_layers.MAX_WORK // (3 * 5 + 128 * 4 + 128 * 129 + 2 * 129)
    model.check(Shapes(shapes(most)))
    with pytest.raises(ModelError, match=r"levels cost \d+ products"):
        model.check(Shapes(shapes(most + 1)))


def test_both_readers_have_the_same_limits():
    text = (GOLDEN.parent / "cpp" / "core" / "src" / "architecture.h").read_text()
    assert f"kMaxWidth = {parts.MAX_WIDTH};" in text
    assert f"kMaxParts = {parts.MAX_PARTS};" in text
    for name, limit in (("kMaxCells", value_layers.MAX_CELLS), ("kMaxWork", value_layers.MAX_WORK)):
        assert f"{name} = std::size_t{{1}} << {limit.bit_length() - 1};" in text
        assert limit.bit_count() == 1


@pytest.mark.parametrize("size", [model_file.MAX_HEADER + 1, 2**63, 2**64 - 1])
def test_a_huge_header_is_refused_before_it_is_read(size):
    with pytest.raises(ModelError, match="header claims"):
        parse_snapshot(size.to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize("name", ["twice", "twice in metadata"])
def test_a_name_that_stands_twice_is_refused(name):
    raw = b'{"a":1,"a":2}' if name == "twice" else b'{"__metadata__":{"a":"1","a":"2"}}'
    with pytest.raises(ModelError, match="twice"):
        parse_snapshot(len(raw).to_bytes(8, "little") + raw)


def test_an_infinite_bound_needs_a_head_that_does_not_scale():
    def box(kind: type[Any], **more: Any) -> arch.Architecture:
        head = kind(low=(None,) * 3, high=(None,) * 3, **more)
        return architecture(head=head)

    log_std = {"log_std": np.zeros(3, np.float32)}
    make_snapshot(box(arch.Gaussian, log_std="log_std"), arrays(**log_std))
    with pytest.raises(ModelError, match="infinite bound"):
        make_snapshot(box(arch.Deterministic, noise=0.1), arrays())


def test_a_file_that_is_missing_or_torn_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"absent\.safetensors"):
        read_snapshot(tmp_path / "absent.safetensors")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(make_snapshot(architecture(), arrays()).data[:-3])
    with pytest.raises(ModelError, match=r"torn\.safetensors"):
        read_snapshot(torn)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_mutation_does_more_than_be_refused_or_act(data):
    original = data.draw(st.sampled_from(FILES)).read_bytes()
    mutated = bytearray(original)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(mutated) - 1))
        kind = data.draw(st.sampled_from(["byte", "cut", "insert", "digit"]))
        if kind == "byte":
            mutated[place] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del mutated[place : place + data.draw(st.integers(1, 64))]
        elif kind == "insert":
            mutated[place:place] = data.draw(st.binary(min_size=1, max_size=16))
        else:
            mutated[place] = data.draw(st.sampled_from(list(b"0123456789-,]}")))
        if not mutated:
            mutated = bytearray(b"\0")
    try:
        policy = Policy(parse_snapshot(bytes(mutated)))
    except ModelError:
        return
    width = sum(entry.raw_width for entry in policy.architecture.inputs)
    if policy.architecture.inputs[0].key is None:
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                policy.act(np.zeros(width, np.float32), None, np.random.default_rng(0))
            except PolicyError:
                return


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused_in_little_memory(data):
    tracemalloc.start()
    try:
        with pytest.raises(ModelError):
            parse_snapshot(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_reading_and_acting_import_no_torch():
    code = (
        "import sys; from assay.server.client.policy import Policy;"
        "from pathlib import Path; from assay.policies.model_file import read_snapshot;"
        f"p = Policy(read_snapshot(Path({str(FILES[0])!r}))); p.act([0.0] * 5);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
