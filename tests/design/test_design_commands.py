"""`assay design` from the first answer to a training run."""

from __future__ import annotations

import importlib
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

import assay
from assay.cli.app import app
from assay.design.blueprint import _contract, make_draft, pick
from assay.design.choose import choose
from assay.design.documents import parse_text, read_document
from assay.design.problem import Mdp, Problem
from assay.design.rules import DesignError
from assay.design.sources import from_answers, from_env, from_run, interview, written
from assay.runs.directory import RunDirectory

PROBLEM = """\
name: drone   # short
description: The drone stands on the pad.
state:
  entries:
    - {name: height, shape: [1], low: 0, high: 10, normalise: bounds}
    - {name: speed, shape: [3], normalise: running}
    - {name: mode, kind: category, size: 3}
    - {name: wind, shape: [2], privileged: true}   # of the simulator
action: {kind: discrete, n: 3, mask: true}
reward:
  terms:
    - {name: nearness, low: -0.1, high: 0}
    - {name: landed, kind: terminal, low: 0, high: 10, goal: true}
mdp:
  gamma: 0.98
  horizon: 40
  limit: 60
  observability: full
  endings: [{name: landed, kind: success, flag: terminated}]
  simulator: {kind: simulator, steps_per_second: 5000}
architecture:
  rollout: {envs: 2, horizon: 32}
  learner: {batch_size: 32}
  evaluation: {episodes: 10, seeds: 5}
  budget: {env_steps: 512}
"""


def design(*words: str | Path, **options: Any) -> Result:
    return CliRunner().invoke(app, ["design", *map(str, words)], **options)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    return tmp_path


class TestNew:
    def test_from_answers(self, tmp_path: Path) -> None:
        file = tmp_path / "sub" / "problem.yaml"
        done = design("new", "-f", file, "action.kind=box", "action.shape=[2]", "name=arm")
        assert done.exit_code == 0, done.output
        text = file.read_text()
        assert yaml.safe_load(text) == {"name": "arm", "action": {"kind": "box", "shape": [2]}}
        assert "# What the agent does." in text and "# reward:" in text
        again = design("new", "-f", file)
        assert again.exit_code == 2 and "exists already" in again.output
        assert file.read_text() == text

    def test_from_a_file_of_answers(self, tmp_path: Path) -> None:
        (tmp_path / "answers.yaml").write_text("mdp.gamma: 0.9\nmdp: {limit: 5}\n")
        file = tmp_path / "p.yaml"
        assert design("new", "-f", file, "--answers", tmp_path / "answers.yaml").exit_code == 0
        assert read_document(file).problem.mdp == Mdp(gamma=0.9, limit=5)

    @pytest.mark.parametrize(
        ("answers", "words"),
        [
            (["mdp.observability=full", "mdp.memory=5"], "mdp.full_memory"),
            (["action.kind=discrete", "action.n=2", "action.low=-1"], "action.foreign_field"),
            (["mdp.horizon=100", "mdp.limit=50"], "mdp.limit_horizon"),
            (["mdp=3", "mdp.gamma=0.9"], "contradict"),
            (["action.kind=box", "action.kind=discrete"], "'action.kind' is 'box' and"),
            (["actoin.kind=box"], "Did you mean 'action'"),
            (["action.kind=wobble"], "action.kind is 'wobble'"),
            (["--env", "CartPole-v1", "--interview"], "exclude each other"),
            (["--env", "CartPol-v1"], "Did you mean 'CartPole-v1'"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, answers: list[str], words: str) -> None:
        file = tmp_path / "problem.yaml"
        done = design("new", "-f", file, *answers)
        assert done.exit_code == 2 and words in done.output and not file.exists()

    def test_from_an_environment(self) -> None:
        values = from_env("CartPole-v1")
        problem = parse_text(written(values), "")
        assert problem.name == "cartpole_v1" and problem.env == "CartPole-v1"
        assert problem.state is not None and problem.action is not None
        assert problem.state.entries[0].shape == (4,)
        assert (problem.action.kind, problem.action.n) == ("discrete", 2)
        assert problem.mdp is not None and problem.mdp.limit == 500
        assert problem.mdp.simulator is not None and problem.mdp.simulator.steps_per_second
        # Its steps are cheap, so that what takes many of them is quicker.
        assert choose(problem)[0][0].spec.name == "ppo"

    def test_the_first_step_does_not_count_for_the_speed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [0.0]

        class SlowStart(gym.Wrapper[Any, Any, Any, Any]):
            steps = 0

            def step(self, action: Any) -> Any:
                clock[0] += 0.01 if self.steps else 2.0  # imports and compiles in the first
                self.steps += 1
                return super().step(action)

        monkeypatch.setattr("assay.design.sources.make_env", lambda name: SlowStart(gym.make(name)))
        monkeypatch.setattr("assay.design.sources.time.perf_counter", lambda: clock[0])
        assert from_env("CartPole-v1")["mdp"]["simulator"]["steps_per_second"] == 100

    def test_from_an_environment_with_a_box_and_one_of_several_agents(self) -> None:
        box = Problem(**from_env("Pendulum-v1"))
        assert box.action is not None and (box.action.low, box.action.high) == (-2.0, 2.0)
        assert box.state is not None and box.state.entries[0].high == (1.0, 1.0, 8.0)
        team = Problem(**from_env("assay/TwoStep-v0"))
        assert team.agents is not None and sum(t.count for t in team.agents.types) == 2
        assert team.agents.types[0].action is not None

    def test_from_a_run(self, tmp_path: Path) -> None:
        config = {
            "algorithm": "sac",
            "env": "Pendulum-v1",
            "run": {"env_steps": 5000, "num_envs": 2, "eval_episodes": 7, "device": "auto"},
            "hyperparameters": {"gamma": 0.9, "buffer_size": 1000, "batch_size": 64},
        }
        run = RunDirectory.create(
            tmp_path, "r", algorithm="sac", env="Pendulum-v1", seed=1, config=config
        )
        run.unlock()
        problem = parse_text(written(from_run(run)), "")
        layers = problem.architecture
        assert layers is not None and layers.learner is not None and layers.buffer is not None
        assert (layers.learner.algorithm, layers.learner.batch_size) == ("sac", 64)
        assert (layers.buffer.kind, layers.buffer.capacity) == ("replay", 1000)
        assert layers.budget is not None and layers.budget.env_steps == 5000
        assert problem.mdp is not None and problem.mdp.gamma == 0.9
        assert problem.action is not None and problem.action.kind == "box"

    def test_a_text_of_any_class_and_a_limit_that_is_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Mission(gym.Space[str]):  # as MiniGrid's, which is no gymnasium.spaces.Text
            def __init__(self) -> None:
                super().__init__((), str)

            def sample(self, mask: Any = None, probability: Any = None) -> str:
                return "go"

            def contains(self, x: Any) -> bool:
                return isinstance(x, str)

        class Told(gym.Env[Any, Any]):
            observation_space = gym.spaces.Dict(
                {"far": gym.spaces.Box(0, 1, (2,)), "mission": Mission()}
            )
            action_space = gym.spaces.Discrete(2)

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                super().reset(seed=seed)
                return {"far": np.zeros(2, np.float32), "mission": "go"}, {}

            def step(self, action: Any) -> Any:
                return {"far": np.zeros(2, np.float32), "mission": "go"}, 0.0, True, False, {}

        monkeypatch.setitem(gym.registry, "Told-v0", gym.envs.registration.EnvSpec("Told-v0", Told))
        made = from_env("Told-v0")
        assert made["state"]["entries"][1] == {"name": "mission", "kind": "text"}
        assert "limit" not in made["mdp"]  # ours of 10,000 steps is not the environment's

    def test_by_an_interview(self, tmp_path: Path) -> None:
        file = tmp_path / "problem.yaml"
        answers = ["arm", "", "", "boxes", "box", "[2]", "-1", "1", "partial", "9", "", "200"]
        answers += ["simulator", "500", "8", "known", "", "100000", "two", "2"]
        answers += ["joints", "[7]", "camera", "[64, 64, 3]"]
        done = design("new", "-f", file, "--interview", input="\n".join(answers) + "\n")
        assert done.exit_code == 0, done.output
        assert "action.kind is 'boxes'" in done.output and "'two' is not a number" in done.output
        assert yaml.safe_load(file.read_text()) == {
            "name": "arm",
            "state": {
                "entries": [
                    {"name": "joints", "kind": "vector", "shape": [7]},
                    {"name": "camera", "kind": "image", "shape": [64, 64, 3]},
                ]
            },
            "action": {"kind": "box", "shape": [2], "low": -1, "high": 1},
            "reward": {"source": "known"},
            "mdp": {
                "observability": "partial",
                "memory": 9,
                "limit": 200,
                "simulator": {"kind": "simulator", "steps_per_second": 500, "parallel": 8},
            },
            "architecture": {"budget": {"env_steps": 100000}},
        }

    def test_an_interview_about_an_environment(self) -> None:
        def ask(question: str) -> str:
            return "CartPole-v1" if question.startswith("The id") else ""

        made = interview(ask, lambda text: None)
        assert made["action"] == {"kind": "discrete", "n": 2}

    def test_an_interview_asks_again_at_once_and_not_for_what_the_environment_tells(self) -> None:
        answers = {
            "The id": ["NoSuch-v0", "MountainCarContinuous-v0"],
            "Does the agent see": ["full"],
            "Steps of a typical": ["5000", "200"],  # the first is more than the limit of 999
            "Copies": ["8"],
        }
        asked: list[str] = []
        told: list[str] = []

        def ask(question: str) -> str:
            asked.append(question)
            left = next((said for start, said in answers.items() if question.startswith(start)), [])
            return left.pop(0) if left else ""

        made = interview(ask, told.append)
        assert len(told) == 2
        assert "NoSuch-v0" in told[0] and "limit=999 is below horizon=5,000" in told[1]
        assert made["env"] == "MountainCarContinuous-v0" and made["mdp"]["horizon"] == 200
        assert made["mdp"]["simulator"]["parallel"] == 8
        for known in ("Actions", "Shape", "Smallest", "Steps after which", "How many things"):
            assert not [question for question in asked if question.startswith(known)]

    def test_an_interview_asks_again_for_a_shape_that_is_none(self) -> None:
        answers = iter(["1", "joints", "seven", "joints", "[7]"])
        told: list[str] = []

        def ask(question: str) -> str:
            return (
                next(answers)
                if any(w in question for w in ("things", "entry", "Shape of j"))
                else ""
            )

        made = interview(ask, told.append)
        assert made["state"]["entries"] == [{"name": "joints", "kind": "vector", "shape": [7]}]
        assert len(told) == 1 and "seven" in told[0]

    def test_answers_in_part_and_as_a_whole(self) -> None:
        with pytest.raises(DesignError, match="contradict"):
            from_answers({"mdp.gamma": 0.5, "mdp": 3})


class TestCheck:
    def test_a_good_problem(self, here: Path) -> None:
        done = design("check", "--json")
        found = json.loads(done.stdout)
        assert done.exit_code == 0 and found["valid"]
        assert {one["rule"] for one in found["findings"]} == {
            "state.privileged",
            "architecture.layer_missing",
        }
        assert found["facts"]["state"]["flat_width"] == 1 + 3 + 3 + 2

    def test_errors_are_an_exit_code(self, here: Path) -> None:
        design("set", "mdp.gamma=1.0", "mdp.endings=[]")
        (here / "problem.yaml").write_text("reward: {unit: m, terms: [{name: a, unit: s}]}\n")
        done = design("check", "reward")
        assert done.exit_code == 2
        assert "'s' cannot be compared with 'm'" in done.output and "1 error," in done.output

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["check", "rewards"], "Did you mean 'reward'?"),
            (["check", "-f", "none.yaml"], "no file 'none.yaml'"),
            (["explain", "reward.suicid"], "Did you mean 'reward.suicide'?"),
            (["check", "--run", "nothing"], "nothing"),
            (["set", "mdp.gama=1"], "Did you mean 'gamma'?"),
            (["blueprint", "--out", "b", "--algorithm", "sax"], "Did you mean 'sac'?"),
            (["blueprint", "--out", "b", "--algorithm", "td3"], "it takes Box actions"),
            (["blueprint", "--out", "."], "exists already"),
        ],
    )
    def test_mistakes_are_one_message(self, here: Path, words: list[str], message: str) -> None:
        done = design(*words)
        assert done.exit_code == 2 and message in done.output
        assert (here / "problem.yaml").read_text() == PROBLEM
        assert sorted(path.name for path in here.iterdir()) == ["problem.yaml"]

    def test_explain(self) -> None:
        shown = json.loads(design("explain", "reward.suicide", "--json").stdout)
        assert shown["severity"] == "warning" and shown["examples"]["bad"]
        assert "crashed" in design("explain", "reward.suicide").output
        assert len(json.loads(design("explain", "--json").stdout)) > 100
        assert json.loads(design("schema").stdout)["title"] == "Problem"


class TestChoose:
    def test_the_choice_can_be_written_down(self, here: Path) -> None:
        done = design("choose", "--apply")
        assert done.exit_code == 0 and "1. ppo (policy-gradient)" in done.output
        text = (here / "problem.yaml").read_text()
        assert "learner: {batch_size: 32, algorithm: ppo}" in text
        assert "# of the simulator" in text and "# short" in text
        found = json.loads(design("choose", "--json").stdout)
        assert found["ranked"][0]["algorithm"] == "ppo" and "qmix" in found["ruled_out"]

    def test_nothing_fits(self, here: Path) -> None:
        (here / "problem.yaml").write_text("action: {kind: hybrid}\n")
        done = design("choose")
        assert done.exit_code == 2 and "hybrid" in done.output


@pytest.fixture
def forget() -> Iterator[None]:
    """Forget the packages that a test wrote."""
    before, path, registered = set(sys.modules), list(sys.path), set(gym.registry)
    yield
    sys.path[:] = path
    for name in set(gym.registry) - registered:
        del gym.registry[name]
    for name in set(sys.modules) - before:
        if name.partition(".")[0].endswith("_env"):
            del sys.modules[name]


class TestBlueprint:
    @pytest.mark.slow
    def test_from_a_problem_to_a_run(self, here: Path, forget: None) -> None:
        done = design("blueprint", "--out", "made", "--train")
        assert done.exit_code == 0, done.output
        assert "| ROLLOUT" in done.output and "2 copies of drone_env:DroneEnv-v0" in done.output
        made = here / "made"
        assert Path.cwd() == made
        assert yaml.safe_load((made / "config.yaml").read_text()) == {
            "algorithm": "ppo", "env": "drone_env:DroneEnv-v0", "env_steps": 512, "num_envs": 2,
            "horizon": 32, "gamma": 0.98, "minibatch_size": 32, "eval_episodes": 10,
            "normalize_obs": True,
        }  # fmt: skip
        (run,) = [path.parent for path in made.glob("runs/*/run.json")]
        assert RunDirectory.open(run).status == "done"

        # The environment is the problem's, and passes the checks of environments.
        runner = CliRunner()
        checked = runner.invoke(app, ["envs", "check", "drone_env:DroneEnv-v0", "--steps", "200"])
        assert checked.exit_code == 0, checked.output
        source = (made / "drone_env" / "env.py").read_text()
        assert max(map(len, source.splitlines())) <= 100
        assert "wind" not in source and "max_episode_steps=60" in (
            (made / "drone_env" / "__init__.py").read_text()
        )

        # The contract waits for nothing but a person.
        contract = runner.invoke(app, ["study", "contract", "check", "--json"])
        assert json.loads(contract.stdout)["valid"], contract.output
        approve = ["study", "contract", "approve", "all", "--by", "Ada"]
        assert runner.invoke(app, approve).exit_code == 0
        assert runner.invoke(app, ["study", "contract", "check"]).exit_code == 0

    def test_pictures_and_page(self, here: Path, forget: None) -> None:
        done = design("blueprint", "--out", "made", "--json")
        facts = json.loads(done.stdout)
        assert set(facts["layers"]) == {"rollout", "buffer", "learner", "evaluation"}
        picture = ElementTree.parse(here / "made" / "blueprint.svg").getroot()
        texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert {"rollout", "buffer", "learner", "evaluation"} <= set(texts)
        page = (here / "made" / "BLUEPRINT.md").read_text()
        assert "## Why ppo" in page and "state.privileged" in page
        assert not [path for path in here.iterdir() if path.name.startswith(".made")]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"mdp.gamma": 1.0, "mdp.endings": [], "mdp.limit": None}, "mdp.gamma_one"),
            (
                {"agents": {"types": [{"name": "a", "count": 2}], "turns": "alternating"}},
                "these take turns",
            ),
            ({"name": "json"}, None),
            ({"architecture.learner.batch_size": 7}, "minibatch"),
        ],
    )
    def test_what_cannot_run_leaves_nothing_behind(
        self, here: Path, forget: None, changes: dict[str, Any], words: str | None
    ) -> None:
        values = yaml.safe_load(PROBLEM)
        for name, value in changes.items():
            place = values
            *parents, last = name.split(".")
            for part in parents:
                place = place[part]
            place[last] = value
        (here / "problem.yaml").write_text(yaml.safe_dump(values))
        done = design("blueprint", "--out", "made")
        if words is None:  # the name is taken by a module, and its package is not
            assert done.exit_code == 0
            return
        assert done.exit_code == 2 and words in done.output
        assert [path.name for path in here.iterdir()] == ["problem.yaml"]

    def test_an_environment_that_exists(self, here: Path) -> None:
        (here / "problem.yaml").unlink()
        assert (
            design("new", "--env", "Pendulum-v1", "architecture.budget.env_steps=300").exit_code
            == 0
        )
        done = design("blueprint", "--out", "made", "--algorithm", "td3", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["config"] == {
            "algorithm": "td3", "env": "Pendulum-v1", "env_steps": 300, "max_episode_steps": 200,
        }  # fmt: skip
        assert not list((here / "made").glob("*/env.py"))


ACTIONS = [
    {"kind": "discrete", "n": 1},
    {"kind": "multi_discrete", "sizes": [3, 2]},
    {"kind": "multi_binary", "n": 4},
    {"kind": "box", "shape": [2], "low": [0, -5], "high": [1, 5]},
]
ENTRIES = [
    [{"name": "camera", "kind": "image", "shape": [12, 12, 1]}],
    [
        {"name": "bits", "kind": "binary", "shape": [2, 3]},
        {"name": "gear", "kind": "category", "size": 4},
    ],
    [{"name": "load", "shape": [2], "low": [0, 1], "high": 5, "dtype": "float64"}],
    [{"name": "level", "shape": [1], "low": 0, "high": 200, "dtype": "uint8"}],
]  # fmt: skip


@pytest.mark.parametrize(("action", "entries"), zip(ACTIONS, ENTRIES, strict=True))
def test_written_environments_of_every_kind_pass_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None, action: Any, entries: Any
) -> None:
    from assay.design.environment import environment_files
    from assay.envs.checks import check_env

    name = f"{action['kind']}_env"
    problem = Problem(
        name=name, state={"entries": entries}, action=action,
        mdp={"limit": 20, "endings": [{"name": "lost", "kind": "failure"}]},
    )  # fmt: skip
    env = on_path(*environment_files(problem, "ppo"), tmp_path, monkeypatch)
    results = check_env(env, steps=100)
    assert [one for one in results if not one.ok] == []


def test_a_study_reckons_with_slow_steps_where_nobody_knows_their_speed() -> None:
    problem = Problem(
        name="slow_one", action={"kind": "box", "shape": [1], "low": -1, "high": 1},
        state={"entries": [{"name": "load", "shape": [1]}]},
    )  # fmt: skip
    draft = make_draft(problem, "", pick(problem, "sac"), ())
    contract = _contract(problem, draft, {"env_steps": 90_000, "eval_episodes": 20})
    # 80 runs (four settings, ten seeds in two pools) of 90,000 steps at 50 a second.
    assert contract["budget"] == {"wall_clock_hours": 40.0, "runs": 80}


@pytest.mark.parametrize(
    ("action", "arm", "goal"),
    [
        (
            {"kind": "box", "shape": [2], "low": -1, "high": 1},
            [{"name": "arm", "shape": [3]}, {"name": "gear", "kind": "category", "size": 3}],
            {"shape": [2, 2]},
        ),
        ({"kind": "discrete", "n": 3}, [], {"shape": [3], "low": [0, -1, 2], "high": 5}),
    ],
)
def test_an_environment_with_goals_can_be_relabelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None, action: Any, arm: Any, goal: Any
) -> None:
    from assay.design.environment import environment_files
    from assay.envs.checks import check_env

    problem = Problem(
        name=f"reach_{action['kind']}", action=action,
        state={"entries": [*arm, {"name": "goal", **goal}]},
        reward={"terms": [{"name": "there", "kind": "sparse", "low": -1, "high": 0}]},
        mdp={"goals": True, "limit": 9, "endings": [{"name": "hit", "kind": "success"}]},
    )  # fmt: skip
    env = on_path(*environment_files(problem, "sac"), tmp_path, monkeypatch)
    assert [one for one in check_env(env, steps=60) if not one.ok] == []
    made = gym.make(env).unwrapped
    more = {"gear"} if arm else set()
    goals = {"achieved_goal", "desired_goal"}
    assert set(made.observation_space.spaces) == {"observation", *goals, *more}
    one = made.observation_space["desired_goal"].high
    other = made.observation_space["desired_goal"].low
    # Missed, and hit: -1 + 1 * [near > 0.95].
    pairs = np.stack([one, other]), np.stack([one, one])
    assert made.compute_reward(*pairs, {}).tolist() == [0.0, -1.0]
    assert made.compute_terminated(*pairs, {}).tolist() == [True, False]
    algorithm = "sac" if action["kind"] == "box" else "dqn"
    run = assay.train(
        algorithm, env, env_steps=40, learning_starts=20, batch_size=8, hidden=[8], her="future",
        device="cpu", root=tmp_path / "runs", sinks=(), eval_every=0, eval_episodes=1,
    )  # fmt: skip
    assert run.status == "done" and "eval/success_rate" in run.metrics()


@pytest.mark.parametrize("kind", ["success", "failure"])
def test_what_is_paid_at_the_end_is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None, kind: str
) -> None:
    from assay.design.environment import environment_files

    problem = Problem(
        name=f"pad_{kind}", action={"kind": "box", "shape": [2], "low": -1, "high": 1},
        state={"entries": [{"name": "place", "shape": [2]}]},
        reward={"terms": [{"name": "landed", "kind": "terminal", "low": 0, "high": 10}]},
        mdp={"limit": 300, "endings": [{"name": "down", "kind": kind}]},
    )  # fmt: skip
    env = gym.make(on_path(*environment_files(problem, "sac"), tmp_path, monkeypatch))
    paid = []
    for push in (0.02, -0.3, 1.0):
        env.reset(seed=1)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(np.full(2, push, np.float32))
            over = terminated or truncated
            paid.append((reward, terminated))
    assert {reward for reward, ended in paid if not ended} <= {0.0}
    assert {reward for reward, ended in paid if ended} <= {10.0}


def test_goals_that_cannot_be_relabelled_are_not_offered_to_hindsight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from assay.cli.plan import make_plan
    from assay.core.errors import EnvError
    from assay.design.sources import from_env
    from assay.testing.envs import GoalPoint

    gym.register("Pointed-v0", GoalPoint, max_episode_steps=9)
    try:
        assert from_env("Pointed-v0")["mdp"]["goals"] is True
        monkeypatch.setattr(
            GoalPoint, "step", lambda self, _: (self._observe(), 0, False, False, {})
        )
        monkeypatch.delattr(GoalPoint, "compute_terminated")
        assert "goals" not in from_env("Pointed-v0")["mdp"]
        with pytest.raises(EnvError, match="her=null"):
            make_plan("sac", "Pointed-v0", {}, {"her": "future"})
    finally:
        del gym.registry["Pointed-v0"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": {"entries": [{"name": "arm", "shape": [3]}]}}, "no entry of the state is one"),
        (
            {"state": {"entries": [{"name": "goal", "kind": "category", "size": 3}]}},
            "'goal' is a category",
        ),
        ({"agents": {"types": [{"name": "a", "count": 2}]}}, "several agents is written without"),
    ],
)
def test_goals_that_cannot_be_written_are_refused(changes: Any, words: str) -> None:
    from assay.design.environment import environment_files

    given: Any = {"state": {"entries": [{"name": "goal", "shape": [2]}]}, **changes}
    action = {"kind": "discrete", "n": 2}
    problem = Problem(name="reach_it", action=action, mdp={"goals": True}, **given)
    with pytest.raises(DesignError, match=words):
        environment_files(problem, "dqn")


def on_path(env: str, files: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the files of a package to a place that is imported from, and return the id."""
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    monkeypatch.syspath_prepend(place)
    for path in place.glob("tests/*.py"):
        compile(path.read_text(), str(path), "exec")
    return env


TYPES = [
    {"name": "truck", "count": 2, "observation": [5], "action": {"kind": "discrete", "n": 3}},
    {"name": "scout", "count": 1},
]


class TestTeams:
    def problem(self, name: str, **agents: Any) -> Problem:
        return Problem(
            name=name, state={"entries": ENTRIES[1]}, action=ACTIONS[0] | {"n": 2},
            agents={"types": TYPES, "turns": "simultaneous", **agents}, mdp={"limit": 20},
        )  # fmt: skip

    def test_a_written_one_passes_the_checks_and_trains(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None
    ) -> None:
        from assay.design.environment import environment_files
        from assay.envs.checks import check_env

        problem = self.problem("convoy_env", reward="individual")
        env = on_path(*environment_files(problem, "ippo"), tmp_path, monkeypatch)
        assert env == "convoy_env:parallel_env"
        results = {one.name: one for one in check_env(env, steps=100)}
        assert [one for one in results.values() if not one.ok] == []
        assert "2 truck, 1 scout" in results["agents"].detail
        assert "saved" in results["state"].detail and "cannot" not in results["state"].detail
        run = assay.train(
            "ippo", env, env_steps=40, num_envs=1, root=tmp_path, eval_episodes=1, sinks=(),
            sharing="type",
        )  # fmt: skip
        assert run.status == "done"

    @pytest.mark.parametrize(("reward", "state"), [("team", True), ("individual", False)])
    def test_rewards_and_the_global_state_are_those_asked_for(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        forget: None,
        reward: str,
        state: bool,
    ) -> None:
        from assay.design.environment import environment_files

        problem = self.problem(f"{reward}_env", reward=reward, global_state=state)
        env = on_path(*environment_files(problem, "mappo"), tmp_path, monkeypatch)
        made = importlib.import_module(env.partition(":")[0]).parallel_env()
        made.reset(seed=1)
        _, rewards, *_ = made.step({agent: 1 for agent in made.agents})
        assert (len(set(rewards.values())) == 1) == (reward == "team")
        assert hasattr(made, "state_space") == state
        if state:
            assert made.state_space.contains(made.state())

    @pytest.mark.parametrize(
        ("changes", "words"),
        [({"state": None}, "'scout' see nothing"), ({"action": None}, "type 'scout' do")],
    )
    def test_types_that_see_or_do_nothing_are_named(
        self, changes: dict[str, Any], words: str
    ) -> None:
        from assay.design.environment import environment_files

        problem = self.problem("blind_env").model_copy(update=changes)
        with pytest.raises(DesignError, match=words):
            environment_files(problem, "ippo")
