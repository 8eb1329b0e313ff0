"""What is measured: learning cases with their goals, and races against peers with their targets.

Nothing here imports torch or a peer, so that tables can be made anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.core.errors import ConfigError, nearest

# ---------------------------------------------------------------------- learning

SEEDS = 5
FINAL_EPISODES = 100
CURVE_POINTS = 20
CURVE_EPISODES = 10

Score = Literal["return", "success"]
_TITLES = {
    "qrdqn": "QR-DQN", "rainbow": "Rainbow", "recurrent_ppo": "Recurrent PPO", "crossq": "CrossQ",
    "dreamerv3": "DreamerV3", "tdmpc2": "TD-MPC2",
}  # fmt: skip
# PPO on Hopper-v5, with which it is an expert after 500,000 steps.
HOPPER_PPO = {
    "num_envs": 8, "horizon": 256, "minibatch_size": 128, "lr": "linear:6e-4:0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A task that an algorithm must learn with its shipped preset, or a control that must fail.

    Attributes:
        name: Of the case and of its evidence file.
        algorithm: Registry name.
        env: Environment id.
        env_steps: The budget.
        threshold: What the interquartile mean over seeds is compared with.
        minutes: Rough time of one seed on one core, to start the longest first.
        inclusive: Whether reaching the threshold exactly is enough.
        overrides: Settings of the case over the preset, such as another memory.
        control_of: The case whose point this one makes: without what is special there, the score
            must stay below the threshold.
        rival: A case of another algorithm that this one is compared with, seed against seed.
        seeds: How many seeds the evidence needs.
        measure: What is judged: the raw return, or the share of successful episodes.
    """

    name: str
    algorithm: str
    env: str
    env_steps: int
    threshold: float
    minutes: float
    inclusive: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    control_of: str | None = None
    rival: str | None = None
    seeds: int = SEEDS
    measure: Score = "return"

    @property
    def goal(self) -> str:
        """Return the goal in words of one line: `> -160`."""
        sign = "<" if self.control_of is not None else "≥" if self.inclusive else ">"
        if self.measure == "success":
            return f"{sign} {self.threshold:.0%} success"
        return f"{sign} {self.threshold:g}"

    @property
    def title(self) -> str:
        """Return what the case is called in tables: algorithm, environment, and what is set."""
        changes = ", ".join(f"{key}={_word(value)}" for key, value in self.overrides.items())
        title = f"{_TITLES.get(self.algorithm, self.algorithm.upper())} {self.env}"
        title += f" ({changes})" if changes else ""
        return title if self.control_of is None else f"control: {title}"

    def met(self, score: float) -> bool:
        """Return whether a score reaches the goal; a control's goal is to stay below."""
        if self.control_of is not None:
            return score < self.threshold
        return score >= self.threshold if self.inclusive else score > self.threshold

    def settings(self, seed: int, device: str = "cpu") -> dict[str, Any]:
        """Return what is laid over the preset: budget, seed, and how progress is watched."""
        return {
            **self.overrides,
            "env_steps": self.env_steps,
            "seed": seed,
            "device": device,
            "threads": 1,
            "eval_every": self.env_steps // CURVE_POINTS,
            "eval_episodes": CURVE_EPISODES,
            "sinks": (),
        }


def _word(value: Any) -> str:
    return "null" if value is None else str(value)


# A goal that is found by nobody who moves at random.
_LONG_MAZE: dict[str, Any] = {"env_kwargs": {"length": 6, "reward": "sparse"}}
# From one end of the U to the other; the goal pays once.
_U_MAZE: dict[str, Any] = {
    "env_kwargs": {
        "maze_map": [[1, 1, 1, 1, 1], [1, "r", 0, 0, 1], [1, 1, 1, 0, 1], [1, "g", 0, 0, 1],
                     [1, 1, 1, 1, 1]],
        "continuing_task": False,
    },
}  # fmt: skip
# Three corridors of three cells, from the first to the last.
_S_MAZE: dict[str, Any] = {
    "env_kwargs": {
        "maze_map": [[1, 1, 1, 1, 1], [1, "r", 0, 0, 1], [1, 1, 1, 0, 1], [1, 0, 0, 0, 1],
                     [1, 0, 1, 1, 1], [1, 0, 0, "g", 1], [1, 1, 1, 1, 1]],
        "continuing_task": False,
        "max_episode_steps": 400,
    },
}  # fmt: skip
# Networks, batches and updates of the size that HIRO's presets have there.
_FLAT: dict[str, Any] = {
    "num_envs": 8, "hidden": (64, 64), "batch_size": 128, "lr": 1e-3, "tau": 0.01,
    "learning_starts": 500, "train_every": 4,
}  # fmt: skip
# By family, as the tables show them. A control follows the case it belongs to.
_SPINE = "The spine"
_CARTPOLE_NO_VELOCITY, _RECALL, _CHAIN = (
    "assay/CartPoleNoVel-v1", "assay/Recall-v0", "assay/Chain-v0",
)  # fmt: skip
GROUPS: dict[str, tuple[Case, ...]] = {
    _SPINE: (
        Case("ppo-cartpole", "ppo", "CartPole-v1", 100_000, 500, 0.2, inclusive=True),
        Case("dqn-cartpole", "dqn", "CartPole-v1", 50_000, 475, 0.7, inclusive=True),
        Case("a2c-cartpole", "a2c", "CartPole-v1", 500_000, 475, 1.0, inclusive=True),
        Case("sac-pendulum", "sac", "Pendulum-v1", 20_000, -160, 3.0),
        Case("td3-pendulum", "td3", "Pendulum-v1", 20_000, -160, 2.0),
        Case("ddpg-pendulum", "ddpg", "Pendulum-v1", 20_000, -160, 2.0),
        Case("ppo-acrobot", "ppo", "Acrobot-v1", 1_000_000, -74, 2.0),
        Case("ppo-lunarlander", "ppo", "LunarLander-v3", 1_000_000, 220, 5.0),
        Case("sac-halfcheetah", "sac", "HalfCheetah-v5", 100_000, 4000, 15.0),
    ),
    "Distributional": (
        Case("c51-cartpole", "c51", "CartPole-v1", 50_000, 475, 1.5, inclusive=True),
        Case("qrdqn-cartpole", "qrdqn", "CartPole-v1", 50_000, 475, 1.5, inclusive=True),
        Case("iqn-cartpole", "iqn", "CartPole-v1", 50_000, 475, 2.0, inclusive=True),
        Case("fqf-cartpole", "fqf", "CartPole-v1", 50_000, 475, 2.5, inclusive=True),
        Case("rainbow-cartpole", "rainbow", "CartPole-v1", 50_000, 475, 2.0, inclusive=True),
        Case("qrdqn-acrobot", "qrdqn", "Acrobot-v1", 100_000, -80, 4.0),
    ),
    "Memory": (
        Case("recurrent_ppo-novel", "recurrent_ppo", _CARTPOLE_NO_VELOCITY, 200_000, 475, 4.0,
             inclusive=True),
        Case("ppo-novel", "ppo", _CARTPOLE_NO_VELOCITY, 200_000, 150, 0.5,
             control_of="recurrent_ppo-novel"),
        Case("recurrent_ppo-recall", "recurrent_ppo", _RECALL, 100_000, 0.95, 2.0,
             inclusive=True, overrides={"memory": "transformer"}),
        Case("ppo-recall", "ppo", _RECALL, 100_000, 0.4, 0.5, control_of="recurrent_ppo-recall"),
        Case("r2d2-recall", "r2d2", _RECALL, 60_000, 0.95, 5.0, inclusive=True),
        Case("dqn-recall", "dqn", _RECALL, 60_000, 0.4, 1.0, control_of="r2d2-recall"),
    ),
    "Continuous control": (
        Case("tqc-pendulum", "tqc", "Pendulum-v1", 20_000, -160, 5.0),
        Case("crossq-pendulum", "crossq", "Pendulum-v1", 20_000, -160, 5.0),
        Case("redq-pendulum", "redq", "Pendulum-v1", 5_000, -160, 3.0),
        Case("crossq-halfcheetah", "crossq", "HalfCheetah-v5", 100_000, 4000, 40.0,
             rival="sac-halfcheetah", seeds=3),
        Case("crossq-halfcheetah-4", "crossq", "HalfCheetah-v5", 100_000, 8000, 15.0,
             overrides={"critic_hidden": (512, 512), "updates": 4}),
    ),
    "World models": (
        Case("mbpo-pendulum", "mbpo", "Pendulum-v1", 5_000, -200, 3.0, rival="sac-pendulum-5k"),
        Case("sac-pendulum-5k", "sac", "Pendulum-v1", 5_000, -200, 1.0),
        Case("dreamerv3-catch", "dreamerv3", "assay/Catch-v0", 10_000, 0.95, 6.0, inclusive=True,
             seeds=3),
        Case("dreamerv3-catch-blind", "dreamerv3", "assay/Catch-v0", 10_000, 0.95, 6.0,
             inclusive=True, overrides={"env_kwargs": {"blind": 4}}, seeds=3),
        Case("tdmpc2-pendulum", "tdmpc2", "Pendulum-v1", 10_000, -160, 6.0, seeds=3),
    ),
    "Goals": (
        Case("sac-her-fetchreach", "sac", "FetchReach-v4", 3_500, 0.95, 1.0, inclusive=True,
             overrides={"her": "future"}, measure="success"),
        Case("sac-fetchreach", "sac", "FetchReach-v4", 3_500, 0.2, 1.0,
             overrides={"her": None}, control_of="sac-her-fetchreach", measure="success"),
    ),
    "Several agents": (
        Case("qmix-twostep", "qmix", "assay/TwoStep-v0", 3_000, 8, 0.1, inclusive=True),
        Case("vdn-twostep", "vdn", "assay/TwoStep-v0", 3_000, 7.5, 0.1,
             control_of="qmix-twostep"),
    ),
    "Levels": (
        Case("hiro-longmaze", "hiro", "assay/LongMaze-v0", 100_000, 0.6, 3.0,
             overrides=_LONG_MAZE),
        Case("sac-longmaze", "sac", "assay/LongMaze-v0", 100_000, 0.2, 2.0,
             overrides=_LONG_MAZE | _FLAT, control_of="hiro-longmaze"),
        Case("hiro-umaze", "hiro", "PointMaze_UMaze-v3", 200_000, 0.6, 6.0,
             overrides=_U_MAZE, measure="success"),
        Case("sac-umaze", "sac", "PointMaze_UMaze-v3", 200_000, 0.2, 3.0,
             overrides=_U_MAZE | _FLAT | {"learning_starts": 1_000, "train_every": 8, "n_step": 3},
             control_of="hiro-umaze", measure="success"),
        Case("hiro-smaze", "hiro", "PointMaze_UMaze-v3", 300_000, 0.6, 8.0,
             overrides=_S_MAZE | {"train_every": 4}, measure="success"),
        Case("sac-smaze", "sac", "PointMaze_UMaze-v3", 300_000, 0.2, 4.0,
             overrides=_S_MAZE | _FLAT | {"learning_starts": 1_000, "n_step": 3},
             control_of="hiro-smaze", measure="success"),
    ),
    "Lag between actor and learner": (
        Case("impala-lag", "impala", "CartPole-v1", 300_000, 475, 0.5, inclusive=True,
             overrides={"actor_lag": 8}),
        Case("impala-lag-uncorrected", "impala", "CartPole-v1", 300_000, 400, 0.5,
             overrides={"actor_lag": 8, "correction": "none"}, control_of="impala-lag"),
    ),
    "Exploration": (
        Case("ppo-rnd-chain", "ppo", _CHAIN, 120_000, 0.9, 0.5, overrides={"rnd": 1.0}),
        Case("ppo-chain", "ppo", _CHAIN, 120_000, 0.1, 0.3, overrides={"rnd": 0.0},
             control_of="ppo-rnd-chain"),
    ),
}  # fmt: skip
CASES = {case.name: case for cases in GROUPS.values() for case in cases}


def cases_of(algorithm: str) -> list[Case]:
    """Return the cases that are evidence for an algorithm, and the controls of these."""
    own = [c for c in CASES.values() if c.algorithm == algorithm and c.control_of is None]
    names = {case.name for case in own}
    return [c for c in CASES.values() if c.name in names or c.control_of in names]


def parse_cases(text: str) -> list[Case]:
    """Read `ppo-cartpole,dqn-cartpole`; `all` is every case.

    Raises:
        ConfigError: A name is unknown; the nearest one is offered.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(CASES.values())
    if not names:
        raise ConfigError("No case was named.", f"Known: {', '.join(CASES)}, or all.")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        hints = " ".join(f"Unknown case '{name}'. {nearest(name, CASES)}" for name in unknown)
        raise ConfigError(hints)
    return [CASES[name] for name in dict.fromkeys(names)]


# ---------------------------------------------------------------------- speed

Library = Literal["assay", "sb3", "sb3-contrib", "skrl"]
Measure = Literal["env_steps_per_second", "updates_per_second", "seconds_to_return"]

EVAL_EVERY = 5_000
EVAL_EPISODES = 20
GOAL_RETURN = 475.0
QUICK_STEPS = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One side of a race, always run in a process of its own.

    Attributes:
        name: Unique.
        library: Whose code runs.
        algorithm: Assay's name for it.
        env: Environment id.
        env_steps: How many.
        settings: For Assay, settings over defaults or preset; for a peer, its own arguments.
        preset: Whether Assay starts from its preset (with the preset's number of environments).
        compile: Whether Assay's steps were compiled before; False is what a user gets who has no
            compiler, and "auto" one who sets nothing.
        cold: Start with an empty cache of compiled steps, as on a machine that never compiled.
        until_return: Evaluate every `EVAL_EVERY` steps and stop at `GOAL_RETURN`; otherwise run
            all steps without evaluations.
        from_command: Time to that return starts with the process, imports included.
    """

    name: str
    library: Library
    algorithm: str
    env: str
    env_steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: bool = False
    compile: Literal["auto"] | bool = False
    cold: bool = False
    until_return: bool = False
    from_command: bool = False


@dataclass(frozen=True, slots=True)
class Race:
    """Entries that take turns, `repeats` times; the seed is the number of the turn.

    Races of one `file` are measured in one go, so that one file has one machine and one date.
    """

    name: str
    entries: tuple[Entry, ...]
    repeats: int
    file: str = "speed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table: two entries of a race and, where the project set one, a target."""

    title: str
    race: str
    ours: str
    peer: str
    measure: Measure
    target: float | None = None


# Whole rollouts of 8 x 32 and of 32 x 32 steps fit both budgets, so that both sides take as many.
_RACE_STEPS = 102_400
_GOAL_STEPS = 102_400
_CARTPOLE, _PENDULUM = "CartPole-v1", "Pendulum-v1"

# The RL Zoo's tuned settings of Stable-Baselines3 for CartPole, in the words of each library.
_SB3_TUNED = {
    "n_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98,
    "gae_lambda": 0.8, "ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2,
}  # fmt: skip
_ASSAY_TUNED = {
    "num_envs": 8, "horizon": 32, "minibatch_size": 256, "epochs": 20, "gamma": 0.98,
    "gae_lambda": 0.8, "entropy_coef": 0.0, "lr": "linear:1e-3:0", "clip": "linear:0.2:0",
    "normalize_obs": False, "normalize_reward": False,
}  # fmt: skip
_SKRL_TUNED = {
    "num_envs": 8, "rollouts": 32, "mini_batches": 1, "learning_epochs": 20,
    "discount_factor": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3,
}  # fmt: skip
# Assay's preset in skrl's words: 32 x 32 transitions in four minibatches of 256.
_SKRL_PRESET = {
    "num_envs": 32, "rollouts": 32, "mini_batches": 4, "learning_epochs": 7,
    "discount_factor": 0.98, "gae_lambda": 0.9, "learning_rate": 3e-3,
}  # fmt: skip
_SB3_DQN = {
    "learning_rate": 1e-4, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 32,
    "train_freq": 4, "gradient_steps": 1, "target_update_interval": 10_000,
    "exploration_fraction": 0.1, "exploration_final_eps": 0.05,
}  # fmt: skip
_ASSAY_DQN = {
    "num_envs": 1, "lr": 1e-4, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 32,
    "train_every": 4, "updates": 1, "target_every": 2_500, "epsilon": "linear:1:0.05:0.1",
    "hidden": [64, 64], "double": False,
}  # fmt: skip
_SB3_SAC = {
    "learning_rate": 3e-4, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256,
    "train_freq": 1, "gradient_steps": 1,
}  # fmt: skip
_ASSAY_SAC = {
    "num_envs": 1, "lr": 3e-4, "buffer_size": 1_000_000, "learning_starts": 100,
    "batch_size": 256, "train_every": 1, "updates": 1, "hidden": [256, 256], "n_step": 1,
}  # fmt: skip
# sb3-contrib's defaults, in the words of each library. Its TQC has two critics by default.
_CONTRIB_QRDQN = {
    "learning_rate": 5e-5, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 32,
    "train_freq": 4, "gradient_steps": 1, "target_update_interval": 10_000,
    "exploration_fraction": 0.1, "exploration_final_eps": 0.05,
}  # fmt: skip
_ASSAY_QRDQN = {
    "num_envs": 1, "lr": 5e-5, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 32,
    "train_every": 4, "updates": 1, "target_every": 2_500, "epsilon": "linear:1:0.05:0.1",
    "hidden": [64, 64], "quantiles": 200, "max_grad_norm": None, "double": False,
}  # fmt: skip
_CONTRIB_TQC = {
    "learning_rate": 3e-4, "buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256,
    "train_freq": 1, "gradient_steps": 1, "top_quantiles_to_drop_per_net": 2,
    "policy_kwargs": {"n_critics": 2, "n_quantiles": 25},
}  # fmt: skip
_ASSAY_TQC = {
    "num_envs": 1, "lr": 3e-4, "buffer_size": 1_000_000, "learning_starts": 100,
    "batch_size": 256, "train_every": 1, "updates": 1, "hidden": [256, 256], "n_critics": 2,
    "n_quantiles": 25, "top_quantiles_to_drop_per_net": 2, "n_step": 1,
}  # fmt: skip
# The RL Zoo's settings for CartPole without velocities, with one LSTM of 64 for actor and critic.
_CONTRIB_RECURRENT = {
    **_SB3_TUNED,
    "policy_kwargs": {
        "lstm_hidden_size": 64, "n_lstm_layers": 1, "shared_lstm": True,
        "enable_critic_lstm": False, "net_arch": {"pi": [64], "vf": [64]},
    },
}  # fmt: skip
_ASSAY_RECURRENT = {
    **_ASSAY_TUNED, "memory": "lstm", "memory_size": 64, "chunk": 32, "hidden": [],
    "head_hidden": [64],
}  # fmt: skip


def _assay(name: str, algorithm: str, env: str, env_steps: int, **options: Any) -> Entry:
    return Entry(f"assay-{name}", "assay", algorithm, env, env_steps, **options)


def _variants(stem: str, env_steps: int, **options: Any) -> tuple[Entry, ...]:
    """Return Assay's PPO with its preset: compiled before, eager, and waiting for the compiler."""
    common = {"preset": True, **options}
    return (
        _assay(f"{stem}-compiled", "ppo", _CARTPOLE, env_steps, compile=True, **common),
        _assay(f"{stem}-eager", "ppo", _CARTPOLE, env_steps, **common),
        _assay(f"{stem}-cold", "ppo", _CARTPOLE, env_steps, compile=True, cold=True, **common),
    )


RACES = {
    race.name: race
    for race in (
        # What a user gets who sets nothing.
        Race(
            "ppo-default",
            (
                Entry("sb3-ppo-default", "sb3", "ppo", _CARTPOLE, _RACE_STEPS, _SB3_TUNED),
                _assay("ppo-default", "ppo", _CARTPOLE, _RACE_STEPS, preset=True, compile="auto"),
            ),
            repeats=3,
            file="speed-default",
        ),
        Race(
            "ppo-475-first",
            (
                Entry("sb3-ppo-475-first", "sb3", "ppo", _CARTPOLE, _GOAL_STEPS, _SB3_TUNED,
                      until_return=True, from_command=True),
                _assay("ppo-475-first", "ppo", _CARTPOLE, _GOAL_STEPS, preset=True, compile="auto",
                       cold=True, until_return=True, from_command=True),
            ),
            repeats=5,
            file="speed-default",
        ),
        Race(
            "ppo",
            (
                Entry("sb3-ppo", "sb3", "ppo", _CARTPOLE, _RACE_STEPS, _SB3_TUNED),
                *_variants("ppo", _RACE_STEPS),
                _assay("ppo-equal-compiled", "ppo", _CARTPOLE, _RACE_STEPS,
                       settings=_ASSAY_TUNED, compile=True),
                _assay("ppo-equal-eager", "ppo", _CARTPOLE, _RACE_STEPS, settings=_ASSAY_TUNED),
                Entry("skrl-ppo-preset", "skrl", "ppo", _CARTPOLE, _RACE_STEPS, _SKRL_PRESET),
                Entry("skrl-ppo-tuned", "skrl", "ppo", _CARTPOLE, _RACE_STEPS, _SKRL_TUNED),
            ),
            repeats=3,
        ),
        Race(
            "ppo-475",
            (
                Entry("sb3-ppo-475", "sb3", "ppo", _CARTPOLE, _GOAL_STEPS, _SB3_TUNED,
                      until_return=True),
                *_variants("ppo-475", _GOAL_STEPS, until_return=True),
            ),
            repeats=5,
        ),
        Race(
            "dqn",
            (
                Entry("sb3-dqn", "sb3", "dqn", _CARTPOLE, 50_000, _SB3_DQN),
                _assay("dqn-compiled", "dqn", _CARTPOLE, 50_000, settings=_ASSAY_DQN,
                       compile=True),
                _assay("dqn-eager", "dqn", _CARTPOLE, 50_000, settings=_ASSAY_DQN),
            ),
            repeats=3,
        ),
        Race(
            "sac",
            (
                Entry("sb3-sac", "sb3", "sac", _PENDULUM, 4_000, _SB3_SAC),
                _assay("sac-compiled", "sac", _PENDULUM, 4_000, settings=_ASSAY_SAC,
                       compile=True),
                _assay("sac-eager", "sac", _PENDULUM, 4_000, settings=_ASSAY_SAC),
            ),
            repeats=3,
        ),
        *(
            Race(
                algorithm,
                (
                    Entry(f"contrib-{algorithm}", "sb3-contrib", algorithm, env, steps, theirs),
                    _assay(f"{algorithm}-compiled", algorithm, env, steps, settings=ours,
                           compile=True),
                    _assay(f"{algorithm}-eager", algorithm, env, steps, settings=ours),
                ),
                repeats=3,
                file="speed-contrib",
            )
            for algorithm, env, steps, theirs, ours in (
                ("qrdqn", _CARTPOLE, 50_000, _CONTRIB_QRDQN, _ASSAY_QRDQN),
                ("recurrent_ppo", _CARTPOLE, 51_200, _CONTRIB_RECURRENT, _ASSAY_RECURRENT),
                ("tqc", _PENDULUM, 3_000, _CONTRIB_TQC, _ASSAY_TQC),
            )
        ),
    )
}  # fmt: skip
# Entries that must have made as many optimizer steps as the peer they are compared with.
SAME_UPDATES = {
    "assay-ppo-equal-compiled": "sb3-ppo",
    "assay-ppo-equal-eager": "sb3-ppo",
    "assay-recurrent_ppo-compiled": "contrib-recurrent_ppo",
    "assay-recurrent_ppo-eager": "contrib-recurrent_ppo",
}

_STEPS: Measure = "env_steps_per_second"
_UPDATES: Measure = "updates_per_second"
_GOAL: Measure = "seconds_to_return"


def _against_sb3(
    what: str, race: str, stem: str, measure: Measure, targets: Mapping[str, float]
) -> list[Comparison]:
    """Return our preset's three variants against SB3; the targets are by variant."""
    variants = {
        "compiled": "compiled before",
        "eager": "eager",
        "cold": "compile=true on the first run, which waits for the compiler",
    }
    return [
        Comparison(
            f"{what}: our preset ({meaning}) / SB3 tuned", race, f"assay-{stem}-{variant}",
            f"sb3-{stem}", measure, targets.get(variant),
        )
        for variant, meaning in variants.items()
    ]  # fmt: skip


COMPARISONS = (
    Comparison("**PPO CartPole by default, from the second run on / SB3 tuned**", "ppo-default",
               "assay-ppo-default", "sb3-ppo-default", _STEPS, 12),
    Comparison("**PPO CartPole from the command to a 475 evaluation, by default, on a machine that "
               "never compiled / SB3 tuned**", "ppo-475-first", "assay-ppo-475-first",
               "sb3-ppo-475-first", _GOAL, 2),
    *_against_sb3("PPO CartPole", "ppo", "ppo", _STEPS, {"compiled": 12, "eager": 6}),
    *_against_sb3("PPO CartPole to a 475 evaluation", "ppo-475", "ppo-475", _GOAL,
                  {"compiled": 10}),
    Comparison("PPO CartPole: SB3's settings and updates on both sides, compiled / SB3", "ppo",
               "assay-ppo-equal-compiled", "sb3-ppo", _STEPS, 4),
    Comparison("PPO CartPole: SB3's settings and updates on both sides, eager / SB3", "ppo",
               "assay-ppo-equal-eager", "sb3-ppo", _STEPS),
    Comparison("PPO CartPole: our preset, compiled / skrl with SB3's tuned settings", "ppo",
               "assay-ppo-compiled", "skrl-ppo-tuned", _STEPS, 5),
    Comparison("PPO CartPole: SB3's tuned settings on both sides, compiled / skrl", "ppo",
               "assay-ppo-equal-compiled", "skrl-ppo-tuned", _STEPS),
    Comparison("PPO CartPole: our preset's settings on both sides, compiled / skrl", "ppo",
               "assay-ppo-compiled", "skrl-ppo-preset", _STEPS),
    Comparison("DQN CartPole: SB3's defaults on both sides, compiled / SB3", "dqn",
               "assay-dqn-compiled", "sb3-dqn", _STEPS, 5),
    Comparison("DQN CartPole: SB3's defaults on both sides, eager / SB3", "dqn",
               "assay-dqn-eager", "sb3-dqn", _STEPS),
    Comparison("SAC Pendulum: SB3's defaults on both sides, compiled / SB3", "sac",
               "assay-sac-compiled", "sb3-sac", _UPDATES, 1.9),
    Comparison("SAC Pendulum: SB3's defaults on both sides, eager / SB3", "sac",
               "assay-sac-eager", "sb3-sac", _UPDATES, 1.2),
    *(
        Comparison(
            f"{title}: {whose} on both sides, {variant} / sb3-contrib", race,
            f"assay-{race}-{variant}", f"contrib-{race}", measure,
            1.5 if variant == "compiled" else None,
        )
        for title, whose, race, measure in (
            ("QR-DQN CartPole", "sb3-contrib's defaults", "qrdqn", _STEPS),
            ("Recurrent PPO CartPole", "tuned settings", "recurrent_ppo", _STEPS),
            ("TQC Pendulum", "sb3-contrib's defaults", "tqc", _UPDATES),
        )
        for variant in ("compiled", "eager")
    ),
)  # fmt: skip
ENTRIES = {entry.name: entry for race in RACES.values() for entry in race.entries}
