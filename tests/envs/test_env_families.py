"""Packages of environments train by their id alone, or say which extra brings them."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.core.errors import EnvError, MissingExtraError
from assay.envs import dm_control, families
from assay.envs.checks import check_env
from assay.envs.families import FAMILIES, Family, family_of
from assay.envs.make import find_spec, make_env, make_vector
from assay.envs.start_check import check_start
from assay.loops.events import CheckpointSaved
from assay.testing.algorithms import assert_same_run

GRID, MINATAR = "MiniGrid-Empty-5x5-v0", "MinAtar/Breakout-v1"
SUITE = "dm_control/cartpole-swingup-v0"
FORAGING, WAREHOUSE = "Foraging-5x5-2p-1f-v3", "rware-tiny-2ag-v2"
ON_POLICY: dict[str, Any] = {
    "env_steps": 128, "num_envs": 2, "horizon": 16, "minibatch_size": 32, "epochs": 1,
}  # fmt: skip
OFF_POLICY: dict[str, Any] = {
    "env_steps": 96, "num_envs": 1, "learning_starts": 32, "train_every": 8, "batch_size": 8,
    "buffer_size": 200,
}  # fmt: skip
QUIET: dict[str, Any] = {
    "eval_every": 0, "eval_episodes": 1, "checkpoint_every": 48, "log_every": 32, "sinks": (),
    "compile": False, "preset": False, "seed": 5, "max_episode_steps": 40, "device": "cpu",
}  # fmt: skip


def needs(module: str) -> Any:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
    )


minigrid, minatar, suite = needs("minigrid"), needs("minatar"), needs("dm_control")
foraging, warehouse = needs("lbforaging"), needs("rware")
CASES = [
    pytest.param("ppo", GRID, {}, marks=minigrid),
    pytest.param("dqn", GRID, {"embed_text": 8}, marks=minigrid),
    pytest.param("dqn", MINATAR, {}, marks=minatar),
    pytest.param("ppo", MINATAR, {}, marks=minatar),
    pytest.param("ppo", SUITE, {}, marks=suite),
    pytest.param("sac", SUITE, {"hidden": (16,)}, marks=suite),
    pytest.param("ippo", FORAGING, {}, marks=foraging),
    pytest.param("qmix", FORAGING, {"hidden": (16,)}, marks=foraging),
    pytest.param("ippo", WAREHOUSE, {}, marks=warehouse),
]


def settings_of(algorithm: str, more: dict[str, Any]) -> dict[str, Any]:
    size = ON_POLICY if algorithm in ("ppo", "ippo") else OFF_POLICY
    return QUIET | size | more


@pytest.mark.filterwarnings("ignore:Observations of")
@pytest.mark.parametrize(("algorithm", "env", "more"), CASES)
def test_a_family_trains_and_resumes_exactly(
    algorithm: str, env: str, more: dict[str, Any], tmp_path: Path
) -> None:
    settings = settings_of(algorithm, more)

    def stop(event: Any) -> Any:
        return assay.STOP if isinstance(event, CheckpointSaved) else None

    whole = assay.train(algorithm, env, root=tmp_path, name="whole", **settings)
    parts = assay.train(algorithm, env, root=tmp_path, name="parts", callbacks=[stop], **settings)
    assert parts.status == "interrupted"
    assert_same_run(whole.path, assay.resume(parts.path).path)
    assert whole.evaluate(1).lengths.max() <= 40


@foraging
def test_foraging_forgets_the_last_episode_and_truncates_at_its_limit() -> None:
    checks = {check.name: check for check in check_env(FORAGING, steps=200)}
    assert all(check.ok for check in checks.values()), checks
    with make_vector(FORAGING, 1) as envs:
        assert envs.spaces.team is not None
        assert envs.spaces.team.agents == ("agent_0", "agent_1")
        envs.reset(seed=3)
        for _ in range(50):
            _, _, terminated, truncated, _, final = envs.step(np.zeros((1, 2), int))  # stand still
        assert truncated.all() and not terminated.any() and final["alive"].all()


@pytest.mark.parametrize(
    ("env", "own"),
    [
        pytest.param(FORAGING, 50, marks=foraging),
        pytest.param(WAREHOUSE, 500, marks=warehouse),
    ],
)
def test_a_limit_that_is_given_replaces_the_games_own(env: str, own: int) -> None:
    with make_vector(env, 1, max_episode_steps=own + 10) as envs:
        envs.reset(seed=3)
        for step in range(1, own + 11):
            truncated = envs.step(np.zeros((1, 2), int))[3]
            assert truncated.all() == (step == own + 10)


@foraging
def test_eaten_food_ends_an_episode_of_foraging() -> None:
    with make_vector(FORAGING, 8) as envs:
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        for _ in range(200):
            _, reward, terminated, *_ = envs.step(rng.integers(6, size=(8, 2)))
            # One food, whose worth of 1 is shared out: the mean over two agents is a half.
            assert reward[terminated].tolist() == [0.5] * terminated.sum()
            assert not reward[~terminated].any()
            if terminated.any():
                return
    raise AssertionError("nobody has eaten")


@foraging
@pytest.mark.slow
def test_ippo_learns_to_forage(tmp_path: Path) -> None:
    rest = ("checkpoint_every", "max_episode_steps", "preset")
    quiet = {key: value for key, value in QUIET.items() if key not in rest}
    run = assay.train("ippo", FORAGING, env_steps=12_288, root=tmp_path, **quiet)
    # All food is 0.5, random actions get 0.22 [0.21, 0.23]. Without chance, two agents that want
    # to the same place stand in each other's way.
    assert run.evaluate(100, sampled=True).mean > 0.42


@suite
def test_the_suite_trains_from_pixels(tmp_path: Path) -> None:
    # OpenGL is chosen once per process, perhaps by another test, and may abort it.
    code = f"from test_env_families import train_from_pixels; train_from_pixels('{tmp_path}')"
    place = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place)
    if done.returncode and DRAWN not in done.stdout:
        pytest.skip("OpenGL does not render here")
    assert done.returncode == 0, done.stderr


DRAWN = "OpenGL renders here"


def train_from_pixels(place: str) -> None:
    make_vector(SUITE, env_kwargs={"pixels": 8}).reset(0)
    print(DRAWN, flush=True)
    envs = make_vector(SUITE, 2, env_kwargs={"pixels": 16, "frame_stack": 2, "camera_id": 1})
    obs = envs.reset(seed=0)
    assert (obs.shape, envs.frame_stack) == ((2, 2, 16, 16, 3), 2)
    assert obs.std() > 5  # something is drawn
    kwargs = {"env_kwargs": {"pixels": 40}, "max_episode_steps": 8}
    settings = settings_of("sac", kwargs) | {"env_steps": 48, "hidden": (16,)}
    run = assay.train("sac", SUITE, root=place, **settings)
    space = run.agent().observations.space
    assert space == gym.spaces.Box(0, 255, (3, 40, 40, 3), np.uint8)
    with make_vector(SUITE, 1, backend="processes", env_kwargs={"pixels": 16}) as apart:
        assert apart.reset(seed=0).std() > 5
    single = make_vector(SUITE, 1, env_kwargs={"pixels": 16, "frame_stack": 1})
    assert (single.reset(seed=0).shape, single.frame_stack) == ((1, 16, 16, 3), None)


@suite
@pytest.mark.parametrize("wrong", [{"frame_stack": 2}, {"camera_id": 1}])
def test_settings_of_images_need_images(wrong: dict[str, int]) -> None:
    with pytest.raises(EnvError, match=r"has no effect on .* without pixels"):
        make_vector(SUITE, env_kwargs=wrong)
    with pytest.raises(EnvError, match=r"no setting 'pixel'.\nDid you mean 'pixels'"):
        make_vector(SUITE, env_kwargs={"pixel": 84})


@suite
def test_the_suite_truncates_and_copies_differ() -> None:
    envs = make_vector(SUITE, 2)
    assert set(envs.spaces.observation) == {"position", "velocity"}
    assert envs.spaces.action == gym.spaces.Box(-1, 1, (1,), np.float32)
    obs = envs.reset(seed=0)
    assert not np.array_equal(obs["position"][0], obs["position"][1])
    for _ in range(999):
        _, _, _, truncated, _, final = envs.step(np.zeros((2, 1), np.float32))
        assert not truncated.any() and final is None
    _, _, terminated, truncated, _, final = envs.step(np.zeros((2, 1), np.float32))
    assert truncated.all() and not terminated.any() and final is not None


@suite
def test_physics_that_diverge_end_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dogs do so within thousands of steps of chance, and the run ended with them."""
    control = importlib.import_module("dm_control.rl.control")
    env = make_env(SUITE)
    env.reset(seed=0)
    before = env.step(np.zeros(1))[0]
    physics = env.unwrapped._env.physics
    with monkeypatch.context() as patch:
        patch.setattr(physics, "step", Mock(side_effect=control.PhysicsError("mjWARN_BADQACC")))
        with pytest.warns(UserWarning, match=r"swingup-v0' diverged.*: mjWARN_BADQACC"):
            obs, reward, terminated, truncated, _ = env.step(np.zeros(1))
    assert (reward, terminated, truncated) == (0.0, True, False)
    np.testing.assert_array_equal(obs["position"], before["position"])
    env.reset()
    assert not env.step(np.zeros(1))[2]


@suite
def test_fields_that_mujoco_has_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = importlib.import_module("dm_control.mujoco.wrapper.mjbindings.sizes")
    table = {"mjmodel": {"qpos0": 1, "gone": 2}, "mjdata": {"qpos": 1, "lost": 3}}
    monkeypatch.setattr(sizes, "array_sizes", table)
    dm_control._drop_missing_fields()
    assert table == {"mjmodel": {"qpos0": 1}, "mjdata": {"qpos": 1}}


@minigrid
def test_minigrids_objects_are_not_taken_for_brightness() -> None:
    envs = make_vector(GRID, 1)
    assert envs.spaces.observation["image"].high.max() == 10
    obs = envs.reset(seed=0)
    assert 2 < obs["image"].max() <= 10
    own = gym.make(GRID).reset(seed=0)[0]["image"]
    assert np.array_equal(obs["image"][0], own)


@minatar
def test_minatars_flags_are_bytes() -> None:
    envs = make_vector(MINATAR, 1)
    assert envs.spaces.observation == gym.spaces.Box(0, 1, (10, 10, 4), np.uint8)
    obs = envs.reset(seed=0)
    assert obs.dtype == np.uint8 and set(np.unique(obs)) == {0, 1}


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(GRID, marks=minigrid),
        pytest.param("MiniGrid-DoorKey-5x5-v0", marks=minigrid),
        pytest.param("BabyAI-GoToRedBall-v0", marks=minigrid),
        pytest.param("MinAtar/SpaceInvaders-v0", marks=minatar),
        pytest.param(SUITE, marks=suite),
        pytest.param("dm_control/walker-walk-v0", marks=suite),
        pytest.param("ALE/Pong-v5", marks=needs("ale_py")),
        pytest.param("FetchReach-v4", marks=needs("gymnasium_robotics")),
        pytest.param("PointMaze_UMaze-v3", marks=needs("gymnasium_robotics")),
    ],
)
def test_their_environments_pass_the_checks(env: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*outside of")
        check_start(make_vector(env, 2))
    failed = [result for result in check_env(env, steps=30) if not result.ok]
    assert failed == []


# ---------------------------------------------------------------------- what is not installed


def gone() -> None:
    raise ModuleNotFoundError("No module")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_an_id_of_a_missing_package_names_the_extra(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert family_of(family.example) is family
    missing = {one.name for one in families.load_all()}  # here, anyhow
    without = [
        one if one is not family else Family(*(getattr(one, f) for f in FIELDS), gone)
        for one in FAMILIES
    ]
    monkeypatch.setattr(families, "FAMILIES", tuple(without))
    registry = {key: spec for key, spec in gym.registry.items() if not family.ids.match(key)}
    monkeypatch.setattr(gym, "registry", registry)
    with pytest.raises(MissingExtraError) as caught:
        find_spec(family.example)
    assert f"'{family.example}' needs the package '{family.package}'" in caught.value.message
    assert f"assay[{family.extra}]" in (caught.value.fix or "")
    assert {one.name for one in families.load_all()} == {*missing, family.name}


FIELDS = ("name", "ids", "example", "package", "extra")


@pytest.mark.parametrize(
    ("error", "package"),
    [
        (ModuleNotFoundError("No module named 'minigrid'", name="minigrid"), "minigrid"),
        (ModuleNotFoundError("No module named 'pygame.font'", name="pygame.font"), "pygame"),
        (gym.error.DependencyNotInstalled("MuJoCo is not installed"), "minigrid"),
    ],
)
def test_what_a_package_lacks_itself_is_named(error: Exception, package: str) -> None:
    def register() -> None:
        raise error

    family = Family(*(getattr(families.MINIGRID, field) for field in FIELDS), register)
    with pytest.raises(MissingExtraError, match=rf"needs the package '{package}'.*\n.*minigrid"):
        family.load("MiniGrid-Empty-5x5-v0")


@pytest.mark.parametrize("display", [None, ":0"])
def test_a_package_that_finds_no_opengl_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, display: str | None
) -> None:
    """As PyOpenGL fails where `MUJOCO_GL` asks for a library that is not there."""
    lacking = tmp_path / "OpenGL" / "raw" / "EGL"
    lacking.mkdir(parents=True)
    (lacking / "lacking.py").write_text("def ask(library):\n    return library.eglQueryString\n")
    monkeypatch.syspath_prepend(str(lacking))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
    family = Family(
        *(getattr(families.DM_CONTROL, field) for field in FIELDS),
        lambda: importlib.import_module("lacking").ask(None),
    )
    monkeypatch.setattr(families, "FAMILIES", (family,))
    monkeypatch.setattr(gym, "registry", {})
    with pytest.raises(EnvError) as caught:
        make_vector(SUITE, env_kwargs={"pixels": 64})
    assert caught.value.message == (
        f"The environment '{SUITE}' could not be made: AttributeError: 'NoneType' object has no "
        "attribute 'eglQueryString'"
    )
    for part in ("libegl1", "MUJOCO_GL=osmesa", "it is 'egl' now"):
        assert part in str(caught.value.fix)
    with pytest.warns(UserWarning, match=r"dm_control could not be made: .*libegl1"):
        assert families.load_all() == ()


def test_a_package_that_fails_is_an_error_of_the_environment() -> None:
    def register() -> None:
        raise ValueError("numpy is too new")

    family = Family(*(getattr(families.MINIGRID, field) for field in FIELDS), register)
    with pytest.raises(EnvError, match=rf"'{GRID}' could not be made: ValueError: numpy is too"):
        family.load(GRID)


@pytest.mark.parametrize("registered", [False, True])  # Robotics has old versions of its own
def test_an_old_version_that_cannot_be_made_names_the_newest(registered: bool) -> None:
    if registered:
        pytest.importorskip("gymnasium_robotics")
        families.ROBOTICS.load()
    with pytest.raises(EnvError, match=r"(?s)'HalfCheetah-v3' needs.*Use 'HalfCheetah-v5'."):
        make_vector("HalfCheetah-v3", 1)


def test_an_id_that_a_family_does_not_have_gets_the_nearest() -> None:
    pytest.importorskip("minigrid")
    with pytest.raises(EnvError, match="Did you mean 'MiniGrid-Empty-"):
        find_spec("MiniGrid-Empty-5x5-v9")
