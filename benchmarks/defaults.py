"""Measure what a stranger gets: defaults against the peers' defaults, where nobody tuned.

    python benchmarks/defaults.py run [--jobs 2] [--part development] [--algorithms ppo,sac]
    python benchmarks/defaults.py table

Every run is a process of its own on one thread, and a line of `evidence/defaults.jsonl`: what is
there is not run again, so the table grows. A line of Assay with other defaults than today's does
not count any more. The libraries take turns. Both are judged by the same episodes of the
deterministic policy after the last step. With `--device cuda` our runs learn on a GPU, which many
of them can share; the peers stay on the CPU. Settings for a trial of other defaults
(`--set epochs=4 --out trial.jsonl`) go to a file of their own, and so do runs of the environments
that are there to choose defaults by (`--part choosing --out trial.jsonl`) and are not in the table.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import evidence
import gymnasium as gym
import numpy as np
from children import ask, finish

from assay.core.config import parse_assignments
from assay.core.errors import AssayError, ConfigError, nearest
from assay.envs.families import family_of
from assay.evaluation.statistics import (
    Interval,
    iqm,
    probability_of_improvement,
    stratified_bootstrap,
    welch_test,
)
from assay.loops.config import RunConfig

STORE = Path(__file__).resolve().parent / "evidence" / "defaults.jsonl"
SEEDS = 5
EPISODES = 20
LONGEST = 1_000  # steps of an episode in the judgement, where the environment has no limit
RUN_TIMEOUT = 3_600
_seen: dict[str, Any] = {}  # what is known of environments that were made
Part = Literal["development", "held out", "choosing"]
Act = Callable[[Any, Any, bool], Any]
ON_POLICY, VALUE, CONTINUOUS = ("ppo", "a2c"), ("dqn",), ("sac", "td3")
_MORE = {"ppo": "recurrent_ppo", "dqn": "qrdqn", "sac": "tqc"}  # on four environments
_PEERS = {
    "ppo": "stable_baselines3.PPO", "a2c": "stable_baselines3.A2C",
    "dqn": "stable_baselines3.DQN", "sac": "stable_baselines3.SAC",
    "td3": "stable_baselines3.TD3", "qrdqn": "sb3_contrib.QRDQN",
    "recurrent_ppo": "sb3_contrib.RecurrentPPO", "tqc": "sb3_contrib.TQC",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """An environment of the suite.

    Attributes:
        env: Its id, with the module that registers it if that is not Gymnasium.
        part: Looked at while defaults are chosen, or once afterwards; or for choosing alone.
        continuous: Whether actions are a Box.
        on_policy: Budget of PPO and A2C.
        replay: Budget of those that learn from a replay; 0 for 50,000 steps of values, and 10,000
            of actors with critics, which learn at every step.
        more: Whether the memory and the distributional algorithms are run on it as well.
    """

    env: str
    part: Part
    continuous: bool
    on_policy: int = 100_000
    replay: int = 0
    more: bool = False

    def budgets(self) -> dict[str, int]:
        """Return the budget of each algorithm that is run here."""
        learners, usual = (CONTINUOUS, 10_000) if self.continuous else (VALUE, 50_000)
        found = {name: self.on_policy for name in ON_POLICY}
        found |= {name: self.replay or usual for name in learners}
        if self.more:
            found |= {_MORE[name]: steps for name, steps in found.items() if name in _MORE}
        return found


TASKS = (
    Task("BipedalWalker-v3", "development", True, 300_000, 20_000),
    Task("LunarLanderContinuous-v3", "development", True, 200_000, 20_000, more=True),
    Task("InvertedPendulum-v5", "development", True),
    Task("Swimmer-v5", "development", True),
    Task("FrozenLake-v1", "development", False),
    Task("CliffWalking-v1", "development", False, more=True),
    Task("MinAtar/Breakout-v1", "development", False),
    Task("inventory:benchmarks/Inventory-v0", "development", False),
    Task("InvertedDoublePendulum-v5", "held out", True),
    Task("Reacher-v5", "held out", True, more=True),
    Task("Pusher-v5", "held out", True),
    Task("Ant-v5", "held out", True),
    Task("dm_control/cartpole-swingup-v0", "held out", True),
    Task("Taxi-v4", "held out", False, more=True),
    Task("Blackjack-v1", "held out", False),
    Task("MiniGrid-Empty-5x5-v0", "held out", False),
)
# The development part has four environments with Box actions, which are too few to choose by.
CHOOSING = tuple(
    Task(env, "choosing", True)
    for env in (
        "Pendulum-v1", "MountainCarContinuous-v0", "Hopper-v5", "Walker2d-v5", "HalfCheetah-v5",
        "dm_control/reacher-easy-v0", "dm_control/ball_in_cup-catch-v0",
        "dm_control/finger-spin-v0", "dm_control/pendulum-swingup-v0", "dm_control/cheetah-run-v0",
        "Humanoid-v5", "HumanoidStandup-v5", "dm_control/walker-walk-v0",
        "dm_control/point_mass-easy-v0", "dm_control/quadruped-walk-v0",
        "dm_control/fish-upright-v0",
        # of many actions
        "dm_control/quadruped-run-v0", "dm_control/swimmer-swimmer15-v0",
        "dm_control/humanoid-stand-v0",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One run: who learns what where."""

    library: str
    algorithm: str
    env: str
    seed: int
    env_steps: int

    def line(self) -> dict[str, Any]:
        """Return it as the beginning of a line of the store."""
        return {name: getattr(self, name) for name in self.__slots__}


# ---------------------------------------------------------------------- one run, in a child


def make(env: str) -> gym.Env[Any, Any]:
    """Make an environment for a peer and for the judgement: flat numbers, and always an end."""
    module, _, name = env.rpartition(":")
    if module:
        importlib.import_module(module)
    elif family := family_of(name):
        family.load(name)
    made = gym.make(name)
    space = made.observation_space
    if isinstance(space, gym.spaces.Dict) and "mission" in space.spaces:  # text: nobody reads it
        keys = [key for key in space.spaces if key != "mission"]
        made = gym.wrappers.FilterObservation(made, keys)
    plain = isinstance(made.observation_space, gym.spaces.Box | gym.spaces.Discrete)
    if not plain or made.observation_space.dtype == bool:
        made = gym.wrappers.FlattenObservation(made)
        made = gym.wrappers.DtypeObservation(made, np.float32)
    if made.spec is None or made.spec.max_episode_steps is None:
        made = gym.wrappers.TimeLimit(made, LONGEST)
    return made


def play(make_env: Callable[[], Any], act: Act, seed: int) -> list[float]:
    """Return the returns of some episodes.

    Args:
        make_env: Makes the environment.
        act: Chooses an action for an observation and its info, told whether the episode begins.
        seed: Of the first episode.
    """
    env = make_env()
    returns = []
    for episode in range(EPISODES):
        obs, info = env.reset(seed=seed + episode)
        total, ended, first = 0.0, False, True
        while not ended:
            obs, reward, terminated, truncated, info = env.step(act(obs, info, first))
            total, ended, first = total + float(reward), terminated or truncated, False
        returns.append(total)
    env.close()
    return returns


def run(entry: Entry, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train and judge in this process."""
    import torch

    torch.set_num_threads(1)
    start = time.perf_counter()
    learn = _assay if entry.library == "assay" else _peer
    act, make_env, config = learn(entry, settings)
    seconds = time.perf_counter() - start
    returns = play(make_env, act, 10_000 + 100 * entry.seed)
    return {
        "config": config,
        "mean": round(float(np.mean(returns)), 4),
        "seconds": round(seconds, 1),
        "returns": [round(value, 3) for value in returns],
    }


def _assay(entry: Entry, settings: Mapping[str, Any]) -> Any:
    import assay

    fixed = {"env_steps": entry.env_steps, "seed": entry.seed, "threads": 1}
    quiet = {"eval_every": 0, "eval_episodes": 1, "checkpoint_every": 0, "sinks": ()}
    with tempfile.TemporaryDirectory() as root:
        run = assay.train(
            entry.algorithm, entry.env, root=root, preset=False, **fixed, **quiet, **settings
        )
        agent = run.agent()

    masked = agent.observations.mask_size is not None

    def act(obs: Any, info: Any, first: bool) -> Any:
        if first:
            agent.reset()
        return agent.act(obs, mask=info["action_mask"] if masked else None)

    def raw() -> Any:
        from assay.envs.make import make_env

        made = make_env(entry.env)
        limited = made.spec is not None and made.spec.max_episode_steps is not None
        return made if limited else gym.wrappers.TimeLimit(made, LONGEST)

    return act, raw, config_hash(run.config)


def config_hash(config: RunConfig) -> str:
    """Return a name for what a run learned with."""
    return evidence.config_hash({"envs": config.run.num_envs, **config.hyperparameters})


def _peer(entry: Entry, settings: Mapping[str, Any]) -> Any:
    module, _, name = _PEERS[entry.algorithm].partition(".")
    kind = getattr(importlib.import_module(module), name)
    policy = "MlpLstmPolicy" if entry.algorithm == "recurrent_ppo" else "MlpPolicy"
    env = make(entry.env)
    model = kind(policy, env, seed=entry.seed, device="cpu", **settings)
    model.learn(entry.env_steps)
    memory: list[Any] = [None]

    def act(obs: Any, info: Any, first: bool) -> Any:
        starts = np.array([first])
        state = None if first else memory[0]
        action, memory[0] = model.predict(obs, state, starts, deterministic=True)
        return action.item() if action.ndim == 0 else action

    return act, lambda: make(entry.env), ""


# ---------------------------------------------------------------------- all runs, in the parent


def entries(part: str, algorithms: Sequence[str], envs: Sequence[str], seeds: int) -> list[Entry]:
    """Return all runs of a part of the suite; libraries take turns, seed after seed."""
    return [
        Entry(library, algorithm, task.env, seed, steps)
        for seed in range(1, seeds + 1)
        for task in (CHOOSING if part == "choosing" else TASKS)
        if part in ("all", task.part) and (not envs or task.env in envs)
        for algorithm, steps in task.budgets().items()
        if not algorithms or algorithm in algorithms
        for library in ("assay", "sb3")
    ]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a store; a torn last line is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def current(lines: Sequence[dict[str, Any]], **settings: Any) -> Iterator[tuple[Entry, float]]:
    """Yield the runs that count: of budgets of the suite, and of Assay with today's defaults."""
    budgets = {task.env: task.budgets() for task in (*TASKS, *CHOOSING)}
    today: dict[tuple[str, str], str] = {}
    for line in lines:
        entry = Entry(**{name: line[name] for name in Entry.__slots__})
        where = entry.algorithm, entry.env
        if budgets.get(entry.env, {}).get(entry.algorithm) != entry.env_steps:
            continue
        if entry.library == "assay":
            if where not in today:
                today[where] = _today(entry, settings) or line["config"]
            if line["config"] != today[where]:
                continue
        yield entry, line["mean"]


def _today(entry: Entry, settings: Mapping[str, Any]) -> str | None:
    """Return the name of today's defaults, or None where the environment is not installed."""
    from assay.loops.config import resolve

    given = {"env_steps": entry.env_steps, **settings}
    try:
        config = resolve(
            entry.algorithm, entry.env, given, use_preset=False,
            look=lambda settings: _look(entry.env, settings),
        )  # fmt: skip
    except AssayError:
        return None
    return config_hash(config)


def _look(env: str, settings: Mapping[str, Any]) -> Any:
    """Look at an environment as `look_at` does, once: some take long to make."""
    from assay.envs.make import look_at

    key = f"{env} {settings}"
    if key not in _seen:
        _seen[key] = look_at(env, settings)
    return _seen[key]


def measure(todo: Sequence[Entry], settings: Mapping[str, Any], out: Path, jobs: int) -> int:
    """Run what is missing, and return how many runs failed."""
    done = {entry for entry, _ in current(read(out), **settings)}
    todo = [entry for entry in todo if entry not in done]
    print(f"{len(todo)} runs to do, {jobs} at a time", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(lambda entry: _launch(entry, settings, out), todo))


def _launch(entry: Entry, settings: Mapping[str, Any], out: Path) -> bool:
    asked = entry.line()
    own = settings if entry.library == "assay" else {}
    result = answer(Path(__file__), [asked, dict(own)], str(entry), RUN_TIMEOUT)
    if result is None:
        return True
    append(out, asked | result)
    print(
        f"{entry.library} {entry.algorithm} {entry.env} {entry.seed}: {result['mean']:.1f}"
        f" after {result['seconds']:.0f} s",
        flush=True,
    )
    return False


def answer(script: Path, spec: Any, name: str, timeout: float) -> dict[str, Any] | None:
    """Return what `script one SPEC` prints in its last line, as a process of one thread.

    Args:
        script: Which script.
        spec: What it is given, as JSON.
        name: What it is called where it fails, which gives None.
        timeout: Seconds.
    """
    try:
        return ask([str(script), "one", json.dumps(spec)], name, timeout=timeout)
    except AssayError as error:
        print(error, flush=True)
        return None


def append(out: Path, line: Mapping[str, Any]) -> None:
    """Add a line to a store."""
    with out.open("a") as file:  # one write: several processes may append
        file.write(json.dumps(line) + "\n")


# ---------------------------------------------------------------------- the table


def scores(path: Path = STORE) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """Return (algorithm, environment) -> library -> seed -> score."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for entry, mean in current(read(path)):
        seeds = found.setdefault((entry.algorithm, entry.env), {"assay": {}, "sb3": {}})
        seeds[entry.library][entry.seed] = mean
    return found


def table(path: Path = STORE) -> str:
    """Return the table of all pairs, and what they say together."""
    found = scores(path)
    lines = [
        "| algorithm | environment | part | steps | Assay | peer | difference | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    tally: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for task in (*TASKS, *CHOOSING):
        for algorithm, steps in task.budgets().items():
            pair = found.get((algorithm, task.env))
            if pair is None or min(len(pair["assay"]), len(pair["sb3"])) < 2:
                continue
            ours, theirs = (list(pair[library].values()) for library in ("assay", "sb3"))
            tally.setdefault(algorithm, {})[task.env] = (ours, theirs)
            difference, verdict = judged(ours, theirs)
            name = task.env.rpartition(":")[2]
            lines.append(
                f"| {algorithm} | {name} | {task.part} | {steps:,} | {spread(ours)} | "
                f"{spread(theirs)} | {difference.point:+.1f} [{difference.low:+.1f}, "
                f"{difference.high:+.1f}] | {verdict} |"
            )
    if not tally:
        return "Not measured yet: `python benchmarks/defaults.py run`."
    lines += [
        "",
        "| algorithm | environments | better | worse | probability of improvement "
        "| IQM Assay | IQM peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for algorithm, pairs in tally.items():
        lines.append(_together(algorithm, pairs))
    return "\n".join(lines)


def judged(ours: Sequence[float], theirs: Sequence[float]) -> tuple[Interval, str]:
    """Return the difference of means with its interval, and what it says."""
    if np.ptp(ours) == 0 and np.ptp(theirs) == 0:
        point = float(ours[0] - theirs[0])  # means of equal numbers differ by rounding
        difference = Interval(point, point, point, 0.95)
    else:
        difference = welch_test(ours, theirs).interval
    if difference.low > 0:
        return difference, "better"
    return difference, "worse" if difference.high < 0 else "level"


def _together(algorithm: str, pairs: Mapping[str, tuple[list[float], list[float]]]) -> str:
    verdicts = [judged(*pair)[1] for pair in pairs.values()]
    ours = {env: np.array(pair[0]) for env, pair in pairs.items()}
    theirs = {env: np.array(pair[1]) for env, pair in pairs.items()}
    wins = probability_of_improvement(ours, theirs, rng=0)
    # 0 is the worst run that was seen in an environment, and 1 the best.
    low = {env: min(map(min, pair)) for env, pair in pairs.items()}
    span = {env: max(map(max, pair)) - low[env] or 1.0 for env, pair in pairs.items()}
    iqms = []
    for side in (ours, theirs):
        unit = {env: (values - low[env]) / span[env] for env, values in side.items()}
        found = stratified_bootstrap(unit, iqm, rng=0)
        iqms.append(f"{found.point:.2f} [{found.low:.2f}, {found.high:.2f}]")
    return (
        f"| {algorithm} | {len(pairs)} | {verdicts.count('better')} | {verdicts.count('worse')} | "
        f"{wins.point:.2f} [{wins.low:.2f}, {wins.high:.2f}] | {iqms[0]} | {iqms[1]} |"
    )


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return mean, standard deviation and number of some scores."""
    middle, around = np.mean(values), np.std(values, ddof=1)
    return f"{middle:.{digits}f} ± {around:.{digits}f} ({len(values)})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="run what is missing")
    runner.add_argument("--part", choices=("all", *get_args(Part)), default="all")
    runner.add_argument("--algorithms", default="", help="some of: " + ", ".join(_PEERS))
    runner.add_argument("--envs", default="", help="some environments, by id")
    runner.add_argument("--library", choices=("assay", "sb3"), help="one of the two alone")
    runner.add_argument("--seeds", type=int, default=SEEDS)
    runner.add_argument("--jobs", type=int, default=1)
    runner.add_argument("--device", default="cpu", help="where Assay learns; the peer: a CPU")
    runner.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for Assay alone")
    for command in (runner, commands.add_parser("table", help="show what there is")):
        command.add_argument("--out", type=Path, default=STORE)
    commands.add_parser("one").add_argument("spec", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.command == "one":
        asked, settings = json.loads(options.spec)
        print(json.dumps(run(Entry(**asked), settings)))
        return 0
    if options.command == "table":
        print(table(options.out))
        return 0
    algorithms = known(options.algorithms, _PEERS, "algorithm")
    envs = known(options.envs, [task.env for task in (*TASKS, *CHOOSING)], "environment")
    if (options.set or options.part == "choosing") and options.out == STORE:
        raise ConfigError(
            "--set and --part choosing are for trials, which are not evidence.",
            "Name a file with --out.",
        )
    todo = entries(options.part, algorithms, envs, options.seeds)
    if options.library:
        todo = [entry for entry in todo if entry.library == options.library]
    settings = {"device": options.device} | parse_assignments(options.set)
    return int(measure(todo, settings, options.out, options.jobs) > 0)


def known(text: str, allowed: Any, what: str) -> list[str]:
    """Read names that are separated by commas; one that is not allowed is refused."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise ConfigError(f"Unknown {what} '{name}'. {nearest(name, list(allowed))}")
    return names


if __name__ == "__main__":
    finish(main)
