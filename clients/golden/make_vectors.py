"""Write the golden vectors: small models of every head, and what they must answer.

    python clients/golden/make_vectors.py

The models are policies of Assay's own algorithms with drawn weights. What they must answer is
worked out here by torch in float64, apart from the code that clients run. The Python client, the
C++ core and torch in float32 are held to these answers, to 1e-6.

`vectors.json` lists the models. A step holds an observation (its numbers in the order of the
model's inputs), a mask or null, noise (see `assay.server.client.policy`), and the expected action,
raw action and log-probability; without noise, `best` is the expected action. Steps belong to one
episode; a memory starts empty, and runs through them once for each of the two.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.functional.distributions import policy_distribution
from assay.networks.quantile import ActionValues
from assay.networks.rnn import Memory, Remembering
from assay.policies import description as arch
from assay.policies.model_file import Snapshot
from assay.testing.algorithms import make_algorithm

STEPS = 8
MARGIN = 1e-4  # how far a draw stays from the border between two choices

VECTOR = spaces.Box(-5, 5, (5,), np.float32)
MIXED = spaces.Dict(
    {
        "choice": spaces.Discrete(3),
        "choices": spaces.MultiDiscrete([2, 4]),
        "flags": spaces.MultiBinary(2),
        "level": spaces.Box(0, 255, (2,), np.uint8),
        "numbers": spaces.Box(-5, 5, (2, 2), np.float32),
    }
)
BOX = spaces.Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([0.5, 10.0, 1.0], np.float32))
ON = {"horizon": 8, "minibatch_size": 8, "hidden": (8, 6)}
OFF = {"buffer_size": 64, "learning_starts": 4, "batch_size": 4, "hidden": (8, 6)}
IMPLICIT = OFF | {"epsilon": 0.4, "cosines": 16}
MEMORY = {
    "horizon": 8, "minibatch_size": 8, "chunk": 8, "hidden": (6,), "memory_size": 5,
    "head_hidden": (),
}  # fmt: skip
MODELS: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "categorical": ("ppo", VECTOR, spaces.Discrete(4), ON | {"normalize_obs": True}),
    "categorical_wide": ("ppo", VECTOR, spaces.Discrete(40), ON),
    "categorical_mixed": ("ppo", MIXED, spaces.Discrete(3), ON | {"normalize_obs": True}),
    "categorical_gru": (
        "recurrent_ppo", VECTOR, spaces.Discrete(4), MEMORY | {"memory": "gru", "memory_layers": 2},
    ),
    "multi_categorical": (
        "ppo", VECTOR, spaces.MultiDiscrete([3, 2, 5]), ON | {"activation": "relu"},
    ),
    "bernoulli": ("ppo", VECTOR, spaces.MultiBinary(4), ON | {"activation": "elu"}),
    "gaussian": ("ppo", VECTOR, BOX, ON | {"activation": "silu", "log_std_init": -0.5}),
    "gaussian_lstm": ("recurrent_ppo", VECTOR, BOX, MEMORY | {"memory": "lstm"}),
    "gaussian_layer_norm": ("ppo", VECTOR, BOX, ON),
    "squashed_gaussian": ("sac", VECTOR, BOX, OFF),
    "squashed_gaussian_batch_norm": ("crossq", VECTOR, BOX, OFF),
    "deterministic": (
        "td3", VECTOR, BOX, OFF | {"activation": "gelu", "exploration_noise": 0.3},
    ),
    "q": ("dqn", VECTOR, spaces.Discrete(5), OFF | {"epsilon": 0.4}),
    "q_dueling": ("dqn", VECTOR, spaces.Discrete(5), OFF | {"epsilon": 0.4, "dueling": True}),
    "q_support": (
        "c51", VECTOR, spaces.Discrete(3),
        OFF | {"epsilon": 0.4, "dueling": True, "atoms": 7, "v_min": -3.0, "v_max": 5.0},
    ),
    "q_quantiles": ("qrdqn", VECTOR, spaces.Discrete(3), OFF | {"epsilon": 0.4, "quantiles": 5}),
    "q_levels": ("iqn", VECTOR, spaces.Discrete(5), IMPLICIT | {"acting_quantiles": 6}),
    "q_levels_deep": (
        "iqn", VECTOR, spaces.Discrete(5),
        IMPLICIT | {"acting_quantiles": 6, "cvar": 0.5, "head_hidden": (7,)},
    ),
    "q_levels_dueling": (
        "iqn", VECTOR, spaces.Discrete(5),
        IMPLICIT | {"acting_quantiles": 6, "dueling": True, "head_hidden": (7,)},
    ),
    "q_fractions": ("fqf", VECTOR, spaces.Discrete(5), IMPLICIT | {"fractions": 6}),
    "q_fractions_deep": (
        "fqf", VECTOR, spaces.Discrete(5),
        IMPLICIT | {"fractions": 6, "head_hidden": (7,), "normalize_obs": True},
    ),
    "q_fractions_dueling": (
        "fqf", VECTOR, spaces.Discrete(5), IMPLICIT | {"fractions": 6, "dueling": True},
    ),
}  # fmt: skip


def main() -> None:
    """Write the models and `vectors.json` beside this file, or into `--out`."""
    parser = argparse.ArgumentParser(description="Write the golden vectors.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, name in enumerate(MODELS):
        algorithm = build(name, seed=number)
        snapshot = algorithm.policy.snapshot(algorithm.spec.name, version=number + 1, epoch=2)
        snapshot.write(out / f"{name}.safetensors")
        reference = Reference(algorithm, snapshot)
        entries.append(
            {
                "file": f"{name}.safetensors",
                "sha256": snapshot.sha256,
                "version": number + 1,
                "steps": make_steps(reference, np.random.default_rng(number)),
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (out / "vectors.json").write_text('{"models": [\n' + lines + "\n]}\n")


def build(name: str, seed: int) -> Any:
    """Return the algorithm behind a model, with drawn weights and statistics."""
    algorithm_name, observation, action, settings = MODELS[name]
    algorithm = make_algorithm(algorithm_name, observation, action, seed=seed, **settings)
    if name == "gaussian_layer_norm":
        # No algorithm's policy has layer normalisation by itself; the format knows it.
        sizes = ((5, 8), (8, 6))
        layers = [(nn.Linear(*size), nn.LayerNorm(size[1]), nn.Tanh()) for size in sizes]
        algorithm.net.encoder.trunk = nn.Sequential(*(layer for block in layers for layer in block))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in vars(algorithm).values():
            for tensor in _tensors(value):
                tensor.uniform_(-0.7, 0.7, generator=generator)
                if tensor.ndim == 2:
                    tensor.mul_(2.0 / tensor.shape[1] ** 0.5)
            for tensor_name, tensor in value.named_buffers() if _is_module(value) else ():
                if tensor_name.endswith("variance"):
                    tensor.uniform_(0.5, 2.0, generator=generator)
                elif tensor_name.endswith("mean"):
                    tensor.uniform_(-0.5, 0.5, generator=generator)
    rng = np.random.default_rng(seed)
    algorithm.update_obs_stats(stack([draw(observation, rng) for _ in range(20)]))
    return algorithm


class Reference:
    """What a policy does, by torch in one precision."""

    def __init__(
        self, algorithm: Any, snapshot: Snapshot, dtype: torch.dtype = torch.float64
    ) -> None:
        self.dtype = dtype
        self.space = algorithm.spaces.observation
        self.head = snapshot.architecture.head
        self.inputs = snapshot.architecture.inputs
        self.arrays = snapshot.arrays
        self.normalization = snapshot.architecture.normalization
        network: Any = algorithm.policy.module().network
        self.memory: Memory | None = None
        if isinstance(network, Remembering):
            self.memory = network.memory.to(dtype)
            self.encoder, self.last = network.encoder.to(dtype), network.head.to(dtype)
        else:
            if isinstance(network, ActionValues):
                network = network.to(dtype)
                self.encoder, self.last = network.network.encoder, network.of_features
            else:
                self.encoder, self.last = network[0].to(dtype), network[1:].to(dtype)
            if isinstance(self.encoder, nn.Sequential):  # the encoder of C51 lies deeper
                self.encoder, self.last = self.encoder[0], nn.Sequential(self.encoder[1], self.last)
        # The encoder's flattening casts to float32; its trunk is fed in the wanted precision.
        self.trunk = self.encoder.trunk
        squash = isinstance(self.head, arch.SquashedGaussian)
        self.distribution: Any = policy_distribution(algorithm.spaces.action, squash=squash)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        dtype = self.dtype
        self.carry: Any = None
        if self.memory is not None:
            initial = self.memory.initial(1)
            self.carry = {k: torch.from_numpy(v).to(dtype) for k, v in initial.items()}

    def params(self, obs: Any) -> Tensor:
        """Return what the head reads, [1, n], and move the memory on."""
        batch = {k: torch.as_tensor(v)[None] for k, v in obs.items()} if _is_dict(obs) else None
        flat = self.encoder.flat(torch.as_tensor(obs)[None] if batch is None else batch)
        flat = flat.to(self.dtype)
        if self.normalization is not None:
            names = self.normalization
            mean, scale, limit = (
                torch.from_numpy(self.arrays[n]).to(self.dtype)
                for n in (names.mean, names.inverse_std, names.limit)
            )
            flat = torch.clamp((flat - mean) * scale, -limit, limit)
        with torch.no_grad():
            features = self.trunk(flat)
            if self.memory is not None:
                first = torch.zeros(1, 1, dtype=self.dtype)
                states, self.carry = self.memory(features[None], self.carry, first)
                features = states[0]
            params: Tensor = self.last(features)
        return params

    def answer(self, params: Tensor, mask: list[int] | None, noise: list[float] | None) -> Any:
        """Return (action, raw action, log-probability, distance of the noise from a border)."""
        head = self.head
        if isinstance(head, arch.ActionValues):
            return self._value_answer(params[0], mask, noise)
        if isinstance(head, arch.Categorical | arch.MultiCategorical | arch.Bernoulli):
            return self._choice_answer(params, mask, noise)
        low = torch.tensor([-np.inf if v is None else v for v in head.low], dtype=self.dtype)
        high = torch.tensor([np.inf if v is None else v for v in head.high], dtype=self.dtype)
        center, half = (high + low) / 2, (high - low) / 2
        z = None if noise is None else torch.tensor(noise, dtype=self.dtype)[None]
        log_prob = torch.zeros(1)
        if isinstance(head, arch.Deterministic):
            unit = params
            if z is not None:
                normal = torch.distributions.Normal(params, head.noise)
                log_prob = normal.log_prob(params + head.noise * z).sum(-1)
                unit = torch.clamp(params + head.noise * z, -1.0, 1.0)
            action = raw = unit * half + center
        else:
            raw = self.distribution.mode(params)
            if z is not None:
                raw, log_prob = self.distribution.sample_log_prob(params, z)
            action = torch.clamp(raw, low, high)
            if isinstance(head, arch.SquashedGaussian):
                action = raw = raw * half + center
        return action[0].tolist(), raw[0].tolist(), float(log_prob[0]), 1.0

    def _choice_answer(self, params: Tensor, mask: Any, noise: Any) -> Any:
        valid = None if mask is None else torch.tensor(mask)[None]
        if noise is None:
            action = self.distribution.mode(params, valid)
            return action[0].tolist(), action[0].tolist(), 0.0, 1.0
        if isinstance(self.head, arch.Bernoulli):
            p = torch.sigmoid(params[0]).tolist()
            bits = [int(u < q) for u, q in zip(noise, p, strict=True)]
            chosen = [b if mask is None or m else 0 for b, m in zip(bits, mask or p, strict=True)]
            border = min(abs(u - q) for u, q in zip(noise, p, strict=True))
        else:
            sizes = self.head.sizes if isinstance(self.head, arch.MultiCategorical) else None
            chosen, border = [], 1.0
            begin = 0
            for u, size in zip(noise, sizes or [params.shape[1]], strict=True):
                part = params[0, begin : begin + size]
                if mask is not None and any(mask[begin : begin + size]):
                    flags = torch.tensor(mask[begin : begin + size]) != 0
                    part = torch.where(flags, part, torch.full_like(part, -torch.inf))
                ends = torch.softmax(part, 0).cumsum(0)
                chosen.append(int((ends <= u).sum()))
                border = min(border, float((ends - u).abs().min()))
                begin += size
            if sizes is None:
                [chosen] = chosen
        log_prob = self.distribution.log_prob(params, torch.tensor(chosen)[None], valid)
        return chosen, chosen, float(log_prob[0]), border

    def _value_answer(self, values: Tensor, mask: Any, noise: Any) -> Any:
        assert isinstance(self.head, arch.ActionValues)
        valid = [i for i in range(self.head.n) if mask is None or mask[i]] or [*range(self.head.n)]
        order = sorted(valid, key=lambda i: -float(values[i]))
        gap = float(values[order[0]] - values[order[1]]) if len(order) > 1 else 1.0
        action, epsilon = order[0], self.head.epsilon
        if noise is None:
            return action, action, 0.0, gap
        if noise[0] < epsilon:
            action = valid[int(noise[1] * len(valid))]
        share = epsilon / len(valid) + (1.0 - epsilon) * (action == order[0])
        return action, action, float(np.log(share)), gap


def make_steps(reference: Reference, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Draw an episode of observations, masks and noise, and work out the answers."""
    observations = [draw(reference.space, rng) for _ in range(STEPS)]
    reference.reset()
    every = [reference.params(obs) for obs in observations]
    size, head = reference.head.mask_size, reference.head
    steps = []
    for i, (obs, params) in enumerate(zip(observations, every, strict=True)):
        mask = None
        if size and i % 2:  # every other one; the last allows nothing, which counts as no mask
            mask = [0] * size if i == STEPS - 1 else (rng.random(size) < 0.6).astype(int).tolist()
        while True:
            noise = draw_noise(head, rng)
            action, raw, log_prob, border = reference.answer(params, mask, noise)
            if border > MARGIN:
                break
        best = reference.answer(params, mask, None)[0]
        steps.append(
            {
                "obs": flat_numbers(reference.inputs, obs), "mask": mask, "noise": noise,
                "action": action, "raw": raw, "log_prob": log_prob, "best": best,
            }
        )  # fmt: skip
    return steps


def draw_noise(head: arch.Head, rng: np.random.Generator) -> list[float]:
    """Return noise of the head's kind, with few digits so that the file stays small."""
    if isinstance(head, arch.Categorical):
        noise = rng.random(1)
    elif isinstance(head, arch.MultiCategorical):
        noise = rng.random(len(head.sizes))
    elif isinstance(head, arch.Bernoulli):
        noise = rng.random(head.n)
    elif isinstance(head, arch.ActionValues):
        noise = rng.random(2)
    else:
        noise = rng.standard_normal(len(head.low))
    drawn: list[float] = np.round(noise, 4).tolist()
    return drawn


def draw(space: Any, rng: np.random.Generator) -> Any:
    """Return an observation whose numbers are exact in few digits."""
    if isinstance(space, spaces.Dict):
        return {key: draw(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return np.array(rng.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=space.shape).astype(np.int8)
    if space.dtype == np.uint8:
        return rng.integers(256, size=space.shape).astype(np.uint8)
    return (rng.integers(-96, 97, size=space.shape) / 64.0).astype(np.float32)


def flat_numbers(inputs: tuple[arch.Entry, ...], obs: Any) -> list[float]:
    """Return the numbers of an observation in the order of the inputs."""
    parts = [obs if entry.key is None else obs[entry.key] for entry in inputs]
    return [float(v) for part in parts for v in np.asarray(part).reshape(-1)]


def stack(trees: list[Any]) -> Any:
    """Return observations as one batch."""
    if _is_dict(trees[0]):
        return {key: np.stack([tree[key] for tree in trees]) for key in trees[0]}
    return np.stack(trees)


def _is_dict(obs: Any) -> bool:
    return isinstance(obs, dict)


def _is_module(value: Any) -> bool:
    return isinstance(value, nn.Module)


def _tensors(value: Any) -> list[Tensor]:
    return list(value.parameters()) if isinstance(value, nn.Module) else []


if __name__ == "__main__":
    main()
