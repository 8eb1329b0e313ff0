"""Race world models: DreamerV3 against SheepRL, an ensemble against a loop.

    python benchmarks/world_speed.py             # all races, three repeats, taking turns
    python benchmarks/world_speed.py --store     # ... and keep the result as evidence
    python benchmarks/world_speed.py --races "ensemble, fit" --store    # one race; others stay
    python benchmarks/world_speed.py --device cuda --store              # the races on a GPU
    python benchmarks/world_speed.py --quick     # does it work? The numbers mean nothing

DreamerV3: SheepRL's `dreamer_v3_5` is the same algorithm as ours, of the same year and authors'
code, and has the same sizes: its 12M is our XS (GRU of 2,048 in 8 blocks, 32 latents of 16 classes,
layers of 256), its 1M our nano. Both take gradient steps on one batch of 16 sequences of 64 steps
that lies in memory, with 15 imagined steps from each state, in float32; once on 17 numbers with 6
actions of a Box, once on images of 64 by 64 in colour with 6 discrete actions. What is timed is the
whole update: world model, imagination, actor, critic, optimizer, slow critic. Neither side writes
metrics. Both are eager, which is the default of both: ours compiles up to 16 steps by itself.

The ensemble: seven networks as MBPO's authors have them, one optimizer step on a batch of 256 each.
The loop has the same layers, loss and optimizer for each member in turn, written as one would, with
torch's modules and its Adam. A rollout step asks one elite for each row; the loop lets every member
predict every row and then chooses, as the authors' code does.

Every measurement is a fresh process bound to the same core with one torch thread. The clock is the
time that the core has spent on the process, so that other processes on the machine disturb less.

On a GPU both sides compute the same batch in bfloat16 (SheepRL by its `bf16-mixed`), which is our
default there, or in float32. Ours is one CUDA graph, by default; SheepRL has none. The batch lies
on the GPU, and the clock is that of the wall, from an idle GPU to an idle GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import evidence
import numpy as np
from children import ask, caches, finish
from speed import pin

from assay.core.errors import ConfigError

STORE = evidence.ROOT / "evidence" / "world_speed.json"
# race: who takes part, how much they do, and the target of the last against the first
RACES: dict[str, dict[str, Any]] = {
    "dreamerv3 XS, numbers": {
        "sides": ("sheeprl", "assay-eager"), "size": "XS", "images": False, "target": 5.0,
        "updates": 1,
    },
    "dreamerv3 XS, images": {
        "sides": ("sheeprl", "assay-eager"), "size": "XS", "images": True, "target": 5.0,
        "updates": 1,
    },
    "dreamerv3 nano, numbers": {
        "sides": ("sheeprl", "assay-eager"), "size": "nano", "images": False,
        "target": None, "updates": 3,
    },
    "ensemble, fit": {"sides": ("loop", "assay-eager", "assay"), "target": 3.0, "updates": 100},
    "ensemble, fit of Pendulum": {
        "sides": ("loop", "assay-eager", "assay"), "hidden": (64, 64, 64), "obs": 3, "actions": 1,
        "target": 3.0, "updates": 300,
    },
    "ensemble, rollout": {"sides": ("loop", "assay-eager"), "target": 3.0, "updates": 5},
}  # fmt: skip
RACES |= {
    f"dreamerv3 {size}, images, GPU, {precision}": {
        "sides": ("sheeprl", "assay"), "size": size, "images": True, "device": "cuda",
        "precision": precision, "target": 2.0, "updates": 5,
    }
    for size, precision in (("XS", "bfloat16"), ("S", "bfloat16"), ("XS", "float32"))
}  # fmt: skip
SHEEPRL_SIZES = {"XS": "12M", "nano": "1M", "S": "25M"}
BATCH, LENGTH, HORIZON = 16, 64, 15
OBS, ACTIONS, PIXELS = 17, 6, 64
MEMBERS, ROWS, ROLLOUTS, HIDDEN = 7, 256, 10_000, (200, 200, 200, 200)
REPEATS = 3
_FLOAT = {"float32": "32-true", "bfloat16": "bf16-mixed"}  # as SheepRL calls it
TIMEOUT = 1_800


# ---------------------------------------------------------------------- one measurement


def child(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process."""
    pinned = pin(spec["core"])
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = "dreamerv3" if spec["race"].startswith("dreamerv3") else spec["race"].split(",")[1]
    makers: dict[str, Callable[[dict[str, Any]], Callable[[], Any]]] = {
        "dreamerv3": _sheeprl if spec["side"] == "sheeprl" else _dreamer,
        " rollout": _loop_rollout if spec["side"] == "loop" else _rollout,
    }
    fits = _loop_fit if spec["side"] == "loop" else _fit
    update = makers.get(kind, fits)(spec)
    on_gpu = _device(spec) != "cpu"
    clock = time.perf_counter if on_gpu else time.process_time
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    update()  # compiles, allocates
    wait()
    began = clock()
    for _ in range(spec["updates"]):
        update()
    wait()
    seconds = clock() - began
    rate = round(spec["updates"] / seconds, 4)
    found = {"updates_per_second": rate, "seconds": round(seconds, 3), "pinned": pinned}
    return found | ({"gpu": torch.cuda.get_device_name()} if on_gpu else {})


def _device(spec: dict[str, Any]) -> str:
    return spec.get("device", "cpu")


def spaces_of(images: bool) -> tuple[Any, Any]:
    """Return the spaces of a race."""
    from gymnasium import spaces

    if images:
        return spaces.Box(0, 255, (3, PIXELS, PIXELS), np.uint8), spaces.Discrete(ACTIONS)
    return (
        spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
        spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32),
    )


def observations(images: bool, *shape: int) -> Any:
    """Return random observations."""
    rng = np.random.default_rng(0)
    if images:
        return rng.integers(0, 256, (*shape, 3, PIXELS, PIXELS), dtype=np.uint8)
    return rng.standard_normal((*shape, OBS), dtype=np.float32)


def _dreamer(spec: dict[str, Any]) -> Callable[[], Any]:
    import torch

    from assay.core.types import SequenceBatch, tree_map
    from assay.testing.algorithms import CannedReplay, make_algorithm

    images = spec["images"]
    observation, action = spaces_of(images)
    settings = {"batch_size": BATCH, "sequence": LENGTH, "imagination": HORIZON}
    settings |= {"size": spec["size"], "precision": spec.get("precision", "float32")}
    algorithm = make_algorithm(
        "dreamerv3", observation, action, device=_device(spec), buffer_size=1_000, **settings
    )
    none = torch.zeros(BATCH, LENGTH)
    taken = torch.randint(ACTIONS, none.shape) if images else torch.rand(*none.shape, ACTIONS)
    carry = algorithm.policy.network.memory.initial(BATCH)
    batch = {
        "obs": torch.from_numpy(observations(images, BATCH, LENGTH + 1)),
        "action": taken, "reward": torch.rand_like(none), "terminated": none, "truncated": none,
        "is_first": none, "valid": torch.ones_like(none), "index": torch.arange(BATCH),
        "carry": {name: torch.from_numpy(rows) for name, rows in carry.items()},
    }  # fmt: skip
    replay = CannedReplay(SequenceBatch(**tree_map(lambda x: x.to(_device(spec)), batch)))
    return lambda: algorithm.update(replay)


def _sheeprl(spec: dict[str, Any]) -> Callable[[], Any]:
    import gymnasium as gym
    import hydra
    import torch
    from lightning.fabric import Fabric
    from omegaconf import OmegaConf
    from sheeprl.algos.dreamer_v3_5 import dreamer_v3_5 as peer
    from sheeprl.utils.utils import dotdict

    images, device = spec["images"], _device(spec)
    precision = _FLOAT[spec.get("precision", "float32")]
    keys = ("rgb", "cnn", "mlp") if images else ("state", "mlp", "cnn")
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        config = hydra.compose(
            "config",
            [
                "exp=dreamer_v3_5", f"algo=dreamer_v3_5_{SHEEPRL_SIZES[spec['size']]}", "env=dummy",
                f"algo.{keys[1]}_keys.encoder=[{keys[0]}]", f"algo.{keys[2]}_keys.encoder=[]",
            ],
        )  # fmt: skip
    cfg: Any = dotdict(
        {
            "algo": OmegaConf.to_container(config.algo, resolve=True),
            "fabric": {"precision": precision},
            "env": {"num_envs": 1},
        }
    )
    observation, action = spaces_of(images)
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    wide = (int(action.n),) if images else action.shape
    world, actor, critic, slow, _ = peer.build_agent(
        fabric, wide, not images, cfg, gym.spaces.Dict({keys[0]: observation})
    )
    parameters = [*world.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = hydra.utils.instantiate(cfg.algo.optimizer, params=parameters, _convert_="all")
    optimizer = fabric.setup_optimizers(optimizer)
    found = cfg.algo.actor.moments
    moments = peer.Moments(found.decay, found.max, found.percentile.low, found.percentile.high)
    moments = moments.to(device)
    shape = LENGTH + cfg.algo.replay_context, BATCH
    none = torch.zeros(*shape, 1)
    taken = torch.rand(*shape, ACTIONS)
    if images:
        taken = torch.nn.functional.one_hot(torch.randint(ACTIONS, shape), ACTIONS).float()
    model = cfg.algo.world_model
    data = {
        keys[0]: torch.from_numpy(observations(images, *shape)), "actions": taken,
        "rewards": torch.rand_like(none), "terminated": none, "truncated": none, "is_first": none,
        "deter": torch.zeros(*shape, model.recurrent_model.recurrent_state_size),
        "stoch": torch.zeros(*shape, model.stochastic_size, dtype=torch.uint8),
    }  # fmt: skip
    data = {name: x.to(device) for name, x in data.items()}

    def update() -> None:
        peer.train(fabric, cfg, world, actor, critic, slow, optimizer, moments, data, None, wide)
        peer.update_target_critic(critic, slow, cfg.algo.critic.tau)

    return update


def _sizes(spec: dict[str, Any]) -> tuple[int, int, tuple[int, ...]]:
    return spec.get("obs", OBS), spec.get("actions", ACTIONS), tuple(spec.get("hidden", HIDDEN))


def _fit(spec: dict[str, Any]) -> Callable[[], Any]:
    import torch

    from assay.algorithms.shared.imagination import model_loss
    from assay.networks.dynamics import DynamicsEnsemble
    from assay.optim.compiled_step import CompiledStep
    from assay.optim.update import Objective

    obs, actions, hidden = _sizes(spec)
    model = DynamicsEnsemble(obs, actions, members=MEMBERS, hidden=hidden)
    mode = "compiled" if spec["side"] == "assay" else "eager"
    step = CompiledStep([Objective("model", model, model_loss(model))], mode=mode)
    batch = {
        "inputs": torch.randn(MEMBERS, ROWS, obs + actions),
        "targets": torch.randn(MEMBERS, ROWS, 1 + obs),
        "ended": torch.zeros(MEMBERS, ROWS), "end_weight": torch.zeros(()),
    }  # fmt: skip
    return lambda: step(batch, 1e-3)


class Members:
    """Seven networks, each with its optimizer, and nothing shared."""

    def __init__(self, obs: int, actions: int, hidden: Sequence[int]) -> None:
        import torch
        from torch import nn

        self.outputs = 1 + obs
        sizes = [obs + actions, *hidden, 2 * self.outputs]
        self.nets, self.bounds, self.optimizers = [], [], []
        for _ in range(MEMBERS):
            layers: list[nn.Module] = []
            for n_in, n_out in itertools.pairwise(sizes):
                layers += [nn.Linear(n_in, n_out), nn.SiLU()]
            net = nn.Sequential(*layers[:-1])
            low = nn.Parameter(torch.full((self.outputs,), -10.0))
            high = nn.Parameter(torch.full((self.outputs,), 0.5))
            self.nets.append(net)
            self.bounds.append((low, high))
            self.optimizers.append(torch.optim.Adam([*net.parameters(), low, high], lr=1e-3))

    def predict(self, member: int, inputs: Any) -> tuple[Any, Any]:
        """Return mean and log-variance."""
        import torch.nn.functional as F

        mean, log_var = self.nets[member](inputs).chunk(2, dim=-1)
        low, high = self.bounds[member]
        log_var = high - F.softplus(high - log_var)
        return mean, low + F.softplus(log_var - low)

    def loss(self, member: int, inputs: Any, targets: Any) -> Any:
        """Return the likelihood with the regularisers of bounds and weights."""
        from assay.networks.dynamics import layer_decays

        mean, log_var = self.predict(member, inputs)
        loss = ((mean - targets).square() * (-log_var).exp() + log_var).mean()
        low, high = self.bounds[member]
        loss = loss + 0.01 * (high.sum() - low.sum())
        linear = [x for x in self.nets[member] if hasattr(x, "weight")]
        for share, layer in zip(layer_decays(len(linear)), linear, strict=True):
            loss = loss + 0.5 * share * layer.weight.square().sum()
        return loss

    def fit(self, inputs: Any, targets: Any) -> None:
        """Take one optimizer step of each."""
        for k, optimizer in enumerate(self.optimizers):
            optimizer.zero_grad()
            self.loss(k, inputs[k], targets[k]).backward()
            optimizer.step()


def _loop_fit(spec: dict[str, Any]) -> Callable[[], Any]:
    import torch

    obs, actions, hidden = _sizes(spec)
    members = Members(obs, actions, hidden)
    inputs = torch.randn(MEMBERS, ROWS, obs + actions)
    targets = torch.randn(MEMBERS, ROWS, 1 + obs)
    return lambda: members.fit(inputs, targets)


def _rollout(spec: dict[str, Any]) -> Callable[[], Any]:
    import torch

    from assay.networks.dynamics import DynamicsEnsemble

    model = DynamicsEnsemble(OBS, ACTIONS, members=MEMBERS, hidden=HIDDEN)
    inputs = torch.randn(ROLLOUTS, OBS + ACTIONS)

    @torch.no_grad()
    def update() -> None:
        found = model.dealt(inputs, torch.randperm(ROLLOUTS), model.elites)
        found.mean + torch.exp(0.5 * found.log_var) * torch.randn_like(found.mean)

    return update


def _loop_rollout(spec: dict[str, Any]) -> Callable[[], Any]:
    import torch

    members = Members(OBS, ACTIONS, HIDDEN)
    inputs, elites = torch.randn(ROLLOUTS, OBS + ACTIONS), torch.arange(5)

    @torch.no_grad()
    def update() -> None:
        found = [members.predict(k, inputs) for k in range(MEMBERS)]
        mean, log_var = (torch.stack(part) for part in zip(*found, strict=True))
        chosen = elites[torch.randint(len(elites), (ROLLOUTS,))]
        rows = torch.arange(ROLLOUTS)
        mean[chosen, rows] + torch.exp(0.5 * log_var[chosen, rows]) * torch.randn_like(mean[0])

    return update


# ---------------------------------------------------------------------- all of them


def measure(
    core: int, names: Sequence[str], repeats: int, quick: bool = False
) -> list[dict[str, Any]]:
    """Return one record per measurement; the sides of a race take turns."""
    has_peer = importlib.util.find_spec("sheeprl") is not None
    if not has_peer and not quick:
        raise ConfigError(
            "sheeprl is not installed here.", "Run `make bench`: it makes an environment with it."
        )
    runs = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        for name in names:
            race = {k: v for k, v in RACES[name].items() if k not in ("sides", "target")}
            sides = [s for s in RACES[name]["sides"] if has_peer or s != "sheeprl"]
            if quick:
                sides, race["updates"] = [s for s in sides if s != "assay"], 1
            for repeat in range(1 if quick else repeats):
                for side in sides:
                    spec = {"race": name, "side": side, "core": core, **race}
                    words = [__file__, "--child", json.dumps(spec)]
                    label = f"{name}, {side}"
                    found = ask(words, label, timeout=TIMEOUT, env=caches(cache))
                    load = round(os.getloadavg()[0], 2)
                    runs.append(
                        {"race": name, "side": side, "repeat": repeat, "load": load} | found
                    )
                    rate = found["updates_per_second"]
                    print(f"{label} {repeat + 1}: {rate:,.3g} updates/s", flush=True)
    return runs


def table(content: dict[str, Any] | None) -> str:
    """Return the ratios of the medians, and those of neighbours as a range."""
    if content is None:
        return "Not measured yet: `make bench`."
    lines = [
        "| race | Assay eager | Assay compiled | peer | ratio [range] | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, race in RACES.items():
        rates = {
            side: np.array(
                [
                    run["updates_per_second"]
                    for run in sorted(content["runs"], key=lambda run: run["repeat"])
                    if (run["race"], run["side"]) == (name, side)
                ]
            )
            for side in race["sides"]
        }
        if not all(len(x) for x in rates.values()):
            continue
        peer = race["sides"][0]
        best = max(race["sides"][1:], key=lambda side: float(np.median(rates[side])))
        pairs = rates[best] / rates[peer]
        ratio = float(np.median(rates[best]) / np.median(rates[peer]))
        target = race["target"]
        met = "" if target is None else "yes" if ratio >= target else "**no**"
        shown = [_rate(rates.get(side)) for side in ("assay-eager", "assay", peer)]
        lines.append(
            f"| {name} | {shown[0]} | {shown[1]} | {peer}: {shown[2]} | "
            f"{ratio:.1f}x [{pairs.min():.1f}x, {pairs.max():.1f}x] | "
            f"{'' if target is None else f'{target:g}x'} | {met} |"
        )
    return "\n".join(lines)


def _rate(values: Any) -> str:
    return "" if values is None else f"{np.median(values):,.3g}/s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and store if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--races", nargs="+", choices=RACES, help="default: those of the device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="turns of every race")
    parser.add_argument("--quick", action="store_true", help="one update, one repeat")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return 0
    names = options.races or [n for n, race in RACES.items() if _device(race) == options.device]
    machine = evidence.machine()
    runs = measure(options.core, names, options.repeats, options.quick)
    if options.store and STORE.exists():
        before = evidence.read_json(STORE)
        kept = [run for run in before["runs"] if run["race"] not in names]
        if any("gpu" not in run for run in kept):  # else all of this processor's are new
            machine = before["machine"]
        runs = kept + runs
    content = {"schema": evidence.SCHEMA, "runs": runs, "machine": machine}
    if not options.quick:
        print(table(content))
    if options.store:
        evidence.write_json(STORE, content)
    return 0


if __name__ == "__main__":
    finish(main)
