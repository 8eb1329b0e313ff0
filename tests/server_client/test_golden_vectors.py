"""Python (NumPy) and torch give the answers of the golden vectors; C++ does in its own tests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.policies.model_file import read_snapshot
from assay.server.client.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "clients" / "golden"
VECTORS = json.loads((GOLDEN / "vectors.json").read_text())["models"]
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def script() -> Any:
    spec = importlib.util.spec_from_file_location("make_vectors", GOLDEN / "make_vectors.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def observation(policy: Policy, numbers: list[float]) -> Any:
    """Cut the numbers of a step into the entries of an observation."""
    parts, begin = {}, 0
    for entry in policy.architecture.inputs:
        parts[entry.key] = np.array(numbers[begin : begin + entry.raw_width])
        begin += entry.raw_width
    return parts[None] if None in parts else parts


@pytest.mark.parametrize("entry", VECTORS, ids=lambda entry: entry["file"].partition(".")[0])
def test_numpy_gives_the_golden_answers(entry):
    policy = Policy(read_snapshot(GOLDEN / entry["file"], entry["sha256"]))
    assert policy.version == entry["version"]
    for explore in (True, False):
        policy.reset()
        for step in entry["steps"]:
            obs = observation(policy, step["obs"])
            noise = step["noise"] if explore else None
            action, log_prob = policy.decide(obs, step["mask"], noise)
            np.testing.assert_allclose(action, step["action" if explore else "best"], **CLOSE)
            np.testing.assert_allclose(log_prob, step["log_prob"] if explore else 0.0, **CLOSE)
            if explore:
                np.testing.assert_allclose(policy.raw, step["raw"], **CLOSE)


def test_torch_in_float32_gives_the_golden_answers_for_the_models_as_they_are_exported():
    golden = script()
    assert [entry["file"] for entry in VECTORS] == [f"{n}.safetensors" for n in golden.MODELS]
    for number, (name, entry) in enumerate(zip(golden.MODELS, VECTORS, strict=True)):
        algorithm = golden.build(name, seed=number)
        snapshot = algorithm.policy.snapshot(algorithm.spec.name, version=number + 1, epoch=2)
        assert snapshot.sha256 == entry["sha256"], f"{name}: run clients/golden/make_vectors.py"
        reference = golden.Reference(algorithm, snapshot, torch.float32)
        rng = np.random.default_rng(number)
        observations = [golden.draw(reference.space, rng) for _ in entry["steps"]]
        for obs, step in zip(observations, entry["steps"], strict=True):
            assert golden.flat_numbers(reference.inputs, obs) == step["obs"]
            params = reference.params(obs)
            action, raw, log_prob, _ = reference.answer(params, step["mask"], step["noise"])
            best = reference.answer(params, step["mask"], None)[0]
            np.testing.assert_allclose(action, step["action"], **CLOSE, err_msg=name)
            np.testing.assert_allclose(raw, step["raw"], **CLOSE, err_msg=name)
            np.testing.assert_allclose(log_prob, step["log_prob"], **CLOSE, err_msg=name)
            np.testing.assert_allclose(best, step["best"], **CLOSE, err_msg=name)


def test_the_vectors_cover_every_head_and_layer_and_stay_small():
    from assay.policies import layers, value_layers

    snapshots = [read_snapshot(GOLDEN / entry["file"]) for entry in VECTORS]
    heads = {s.architecture.head.kind for s in snapshots}
    assert heads == {
        "categorical", "multi_categorical", "bernoulli", "gaussian", "squashed_gaussian",
        "deterministic", "q",
    }  # fmt: skip
    every = [layer for s in snapshots for layer in s.architecture.layers]
    for layer in list(every):  # and those inside the streams of a head
        every += [*getattr(layer, "advantage", ()), *(getattr(layer, "value", ()) or ())]
    kinds = {layer.kind for layer in every}
    assert kinds == {"dense", "layer_norm", "batch_norm", "dueling", "atoms", "levels", "gru",
                     "lstm", "activation"}  # fmt: skip
    levels = {
        (layer.proposal is not None, layer.affine, layer.value is not None)
        for layer in every
        if isinstance(layer, value_layers.Levels)
    }
    assert len(levels) == 6  # given or proposed; an affine head or not; with and without a value
    dense = {
        layer.activation for layer in every if isinstance(layer, layers.Dense | layers.Activation)
    }
    assert dense == {None, "tanh", "relu", "elu", "silu", "gelu"}
    assert sum(path.stat().st_size for path in GOLDEN.iterdir() if path.is_file()) < 300 * 1024
