"""The code that is timed: Assay through its public API, and each peer the way its docs show.

Every function runs alone in a fresh process that is bound to one core. Two clocks: `seconds` is the
training loop alone (SB3's `learn`, skrl's `train`, Assay's own `time/elapsed`); `seconds_to_return`
starts before environments and model are made, with all imports done, or with the process where an
entry says so, and ends with the evaluation that reaches the goal. What is left on: Assay writes its
metrics to disk a hundred times a run; the peers log nothing.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

from cases import EVAL_EPISODES, EVAL_EVERY, GOAL_RETURN, Entry

Result = dict[str, Any]


def run(entry: Entry, seed: int, launched: float | None = None) -> Result:
    """Run one entry and return its measurements.

    Args:
        entry: What to run.
        seed: Its seed.
        launched: When its process was started, by `time.monotonic`, if that is when its clock
            starts.
    """
    import torch

    torch.set_num_threads(1)
    functions: dict[tuple[str, str], Callable[[Entry, int, float | None], Result]] = {
        ("sb3", "ppo"): _sb3,
        ("sb3", "dqn"): _sb3,
        ("sb3", "sac"): _sb3,
        ("sb3-contrib", "qrdqn"): _sb3,
        ("sb3-contrib", "recurrent_ppo"): _sb3,
        ("sb3-contrib", "tqc"): _sb3,
        ("skrl", "ppo"): _skrl_ppo,
    }
    result = functions.get((entry.library, entry.algorithm), _assay)(entry, seed, launched)
    seconds = result["seconds"]
    return result | {
        "seconds": round(seconds, 4),
        "env_steps_per_second": round(result["env_steps"] / seconds, 2),
        "updates_per_second": round(result["updates"] / seconds, 2),
    }


def _result(
    seconds: float, env_steps: int, updates: int, final: float, reached: float | None = None
) -> Result:
    """Name what every contestant reports."""
    return {
        "seconds": seconds,
        "env_steps": env_steps,
        "updates": updates,
        "final_return": round(final, 2),
        "seconds_to_return": None if reached is None else round(reached, 4),
    }


# ---------------------------------------------------------------------- Assay


def _assay(entry: Entry, seed: int, launched: float | None) -> Result:
    from assay import api, events
    from assay.loops.config import resolve

    settings = {
        **entry.settings,
        "env_steps": entry.env_steps,
        "seed": seed,
        "device": "cpu",
        "compile": entry.compile or "auto",
        "threads": 1,
        "eval_every": EVAL_EVERY if entry.until_return else 0,
        "eval_episodes": EVAL_EPISODES,
        "checkpoint_every": 0,
        "sinks": (),
    }
    if launched is None:
        # This imports the algorithm.
        resolve(entry.algorithm, entry.env, settings, use_preset=entry.preset)
        _import_lazy_parts(entry.env)
    seen: dict[str, Any] = {"reached": None}

    def watch(event: events.Event) -> Any:
        if isinstance(event, events.Logged):
            seen["elapsed"] = event.metrics["time/elapsed"]
        elif isinstance(event, events.Evaluated):
            seen["return"] = event.result.mean
            if entry.until_return and event.result.mean >= GOAL_RETURN:
                seen["reached"] = time.monotonic() - start
                return events.STOP
        elif isinstance(event, events.RunEnded):
            seen["clock"] = event.clock
        return None

    with tempfile.TemporaryDirectory() as root:
        start = time.monotonic() if launched is None else launched
        api.train(
            entry.algorithm, entry.env, root=root, preset=entry.preset, callbacks=[watch],
            **settings,
        )  # fmt: skip
    clock = seen["clock"]
    return _result(seen["elapsed"], clock.env_steps, clock.updates, seen["return"], seen["reached"])


# ---------------------------------------------------------------------- Stable-Baselines3

_SB3_CLASSES = {
    "ppo": "stable_baselines3.PPO", "dqn": "stable_baselines3.DQN",
    "sac": "stable_baselines3.SAC", "qrdqn": "sb3_contrib.QRDQN",
    "recurrent_ppo": "sb3_contrib.RecurrentPPO", "tqc": "sb3_contrib.TQC",
}  # fmt: skip


def _sb3(entry: Entry, seed: int, launched: float | None) -> Result:
    module, _, name = _SB3_CLASSES[entry.algorithm].partition(".")
    kind = getattr(importlib.import_module(module), name)
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    if launched is None:
        _import_lazy_parts(entry.env)
    start = time.monotonic() if launched is None else launched
    reached: list[float] = []
    # As many environments as episodes, so that an evaluation is one batched pass.
    judge_env = make_vec_env(entry.env, n_envs=EVAL_EPISODES, seed=10_000 + seed)

    def judge(model: Any) -> float:
        found = evaluate_policy(model, judge_env, EVAL_EPISODES, deterministic=True)
        return float(found[0])

    class UntilReturn(BaseCallback):
        """Evaluate every so many steps, and stop at the goal."""

        due = EVAL_EVERY

        def _on_step(self) -> bool:
            if self.num_timesteps < self.due:
                return True
            self.due += EVAL_EVERY
            if judge(self.model) < GOAL_RETURN:
                return True
            reached.append(time.monotonic() - start)
            return False

    settings = dict(entry.settings)
    env = make_vec_env(entry.env, n_envs=settings.pop("n_envs", 1), seed=seed)
    if entry.algorithm in ("ppo", "recurrent_ppo"):
        # Both fall linearly to zero over the run.
        settings["learning_rate"] = _falling(settings["learning_rate"])
        settings["clip_range"] = _falling(settings["clip_range"])
    policy = "MlpLstmPolicy" if entry.algorithm == "recurrent_ppo" else "MlpPolicy"
    model = kind(policy, env, seed=seed, device="cpu", verbose=0, **settings)
    callback = UntilReturn() if entry.until_return else None
    began = time.monotonic()
    model.learn(entry.env_steps, callback=callback, log_interval=None)
    seconds = time.monotonic() - began
    learner = model.critic if entry.algorithm in ("sac", "tqc") else model.policy
    return _result(
        seconds, model.num_timesteps, _adam_steps(learner.optimizer), judge(model),
        reached[0] if reached else None,
    )  # fmt: skip


def _import_lazy_parts(env: str) -> None:
    """Import what torch and Gymnasium import only when first used: no side pays for imports."""
    import gymnasium as gym

    importlib.import_module("torch._dynamo")  # a torch optimizer does so when it is made
    gym.make(env).close()


def _falling(value: float) -> Callable[[float], float]:
    return lambda remaining: remaining * value


def _adam_steps(optimizer: Any) -> int:
    """Return how often an optimizer has stepped, by its own count."""
    counts = [int(state["step"]) for state in optimizer.state.values()]
    return max(counts, default=0)


# ---------------------------------------------------------------------- skrl


def _skrl_ppo(entry: Entry, seed: int, launched: float | None) -> Result:
    import gymnasium as gym
    import torch
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils import set_seed
    from torch import nn

    def network(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )

    class Actor(CategoricalMixin, Model):
        """The policy, of the size that all contestants use."""

        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces)
            CategoricalMixin.__init__(self)
            self.net = network(self.num_observations, self.num_actions)

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
            """Return logits."""
            return self.net(inputs["observations"]), {}

    class Critic(DeterministicMixin, Model):
        """The value function."""

        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = network(self.num_observations, 1)

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
            """Return values."""
            return self.net(inputs["observations"]), {}

    _import_lazy_parts(entry.env)
    settings = dict(entry.settings)
    set_seed(seed)
    # Gymnasium's own batched CartPole: the fastest environment that skrl can be given.
    env = wrap_env(gym.make_vec(entry.env, num_envs=settings.pop("num_envs")), verbose=False)
    spaces = {
        "observation_space": env.observation_space, "action_space": env.action_space,
        "device": "cpu",
    }  # fmt: skip
    models = {"policy": Actor(**spaces), "value": Critic(**spaces)}
    rollouts = settings["rollouts"]
    cfg = PPO_CFG(**settings, value_clip=0.0, value_loss_scale=0.5)
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=rollouts, num_envs=env.num_envs, device="cpu")
    agent = PPO(models=models, memory=memory, cfg=cfg, **spaces)
    options = {
        "timesteps": entry.env_steps // env.num_envs, "headless": True,
        "disable_progressbar": True, "close_environment_at_exit": False,
    }  # fmt: skip
    trainer = SequentialTrainer(env=env, agents=agent, cfg=options)
    began = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - began

    def act(obs: Any) -> Any:
        with torch.no_grad():
            return models["policy"].net(torch.as_tensor(obs)).argmax(1).numpy()

    steps = options["timesteps"] * env.num_envs
    return _result(seconds, steps, _adam_steps(agent.optimizer), _judge(entry.env, act, seed))


def _judge(env: str, act: Callable[[Any], Any], seed: int) -> float:
    """Return the mean return of one episode in each of a batch of environments."""
    import gymnasium as gym
    import numpy as np

    envs = gym.make_vec(env, num_envs=EVAL_EPISODES)
    obs, _ = envs.reset(seed=10_000 + seed)
    returns, playing = np.zeros(EVAL_EPISODES), np.ones(EVAL_EPISODES, bool)
    while playing.any():
        obs, reward, terminated, truncated, _ = envs.step(act(obs))
        returns += reward * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())
