"""Which backend is chosen, and what the user reads when something is wrong."""

from __future__ import annotations

import doctest
import os
import re
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Counter, Spoiler
from gymnasium.vector import SyncVectorEnv

import assay.envs.make
from assay.core.errors import EnvError, MissingExtraError
from assay.envs.gym_vector import Batched
from assay.envs.make import find_spec, make_env, make_vector
from assay.envs.sync import Sync


def rollout(envs, steps: int = 60):
    rng = np.random.default_rng(3)
    yield envs.reset(seed=11), None
    for _ in range(steps):
        result = envs.step(rng.integers(2, size=envs.num_envs))
        yield result[0], result[1:]


def test_examples() -> None:
    assert doctest.testmod(assay.envs.make).failed == 0


def test_backends_agree_bit_for_bit() -> None:
    with (
        make_vector("CartPole-v1", 3) as native,
        make_vector("CartPole-v1", 3, backend="sync") as sync,
        make_vector("CartPole-v1", 3, backend="processes", workers=2) as processes,
    ):
        assert type(native.backend) is Batched and native.backend.always_finite
        assert type(sync.backend) is Sync
        ended = 0
        for one, two, three in zip(*map(rollout, (native, sync, processes)), strict=True):
            for other in (two, three):
                assert np.array_equal(one[0], other[0])
                if one[1] is None:
                    continue
                for a, b in zip(one[1][:3], other[1][:3], strict=True):
                    assert np.array_equal(a, b)
                done = one[1][1] | one[1][2]
                assert (one[1][4] is None) == (other[1][4] is None) == (not done.any())
                if done.any():
                    ended += 1
                    assert np.array_equal(one[1][4][done], other[1][4][done])
        assert ended > 4


def test_auto_prefers_native_then_the_vector_entry_point_then_sync() -> None:
    assert make_vector("Pendulum-v1", 2).backend.always_finite
    own = make_vector("CartPole-v1", 2, env_kwargs={"sutton_barto_reward": True})
    assert type(own.backend) is Batched and not own.backend.always_finite
    assert "CartPoleVectorEnv" in type(own.backend.env).__name__
    assert type(make_vector("Acrobot-v1", 2, backend="sync").backend) is Sync
    assert type(make_vector("FrozenLake-v1", 2).backend) is Sync
    drawn = make_vector("CartPole-v1", 2, env_kwargs={"render_mode": "rgb_array"})
    assert type(drawn.backend) is Sync
    drawn.reset(seed=0)
    assert drawn.render().shape[2] == 3


def test_environment_settings_arrive() -> None:
    envs = make_vector("FrozenLake-v1", 2, env_kwargs={"map_name": "8x8"})
    assert envs.spaces.observation.n == 64
    short = make_vector("Acrobot-v1", 1, env_kwargs={"max_episode_steps": 2})
    short.reset(seed=0)
    short.step(np.array([0]))
    assert short.step(np.array([0]))[3].tolist() == [True]


@pytest.mark.parametrize(
    "env",
    [
        Counter,
        lambda: Counter(3),
        Counter(3),
        SyncVectorEnv([Counter]),
        gym.wrappers.TimeLimit(Counter(9), 3),
    ],
)
def test_every_kind_of_environment_is_taken(env) -> None:
    envs = make_vector(env)
    assert envs.num_envs == 1
    assert envs.reset(seed=0).tolist() == [[0]]
    assert [float(envs.step(np.array([0]))[1][0]) for _ in range(3)] == [1, 2, 3]


def test_a_factory_takes_the_settings() -> None:
    envs = make_vector(Counter, 2, env_kwargs={"length": 1})
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, np.int64))[2].all()


def test_copies_have_different_seeds() -> None:
    obs = make_vector("Acrobot-v1", 3, backend="sync").reset(seed=7)
    assert len({tuple(row) for row in obs.tolist()}) == 3
    again = make_vector("Acrobot-v1", 2, backend="sync").reset(seed=8)
    assert np.array_equal(obs[1:], again)


def test_a_seed_of_63_bits_is_fine() -> None:
    class Picky(Counter):
        def reset(self, *, seed=None, options=None):
            assert seed is None or seed < 2**32
            return super().reset(seed=seed)

    make_vector(Picky, 2).reset(seed=2**63 - 1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CartPol-v1", "Did you mean 'CartPole-v1'?"),
        ("cartpole-v1", "Did you mean 'CartPole-v1'?"),
        ("CartPole", "Did you mean 'CartPole-v"),
        ("HalfCheetah-v9", "Did you mean 'HalfCheetah-v"),
        ("FlappyBird-v0", "my_package.envs:FlappyBird-v0"),
        ("env_zoo:Missing-v0", "The module 'env_zoo' was imported; it registers none"),
        ("qqqqqqqqqqqqqqqqqq", "my_package.envs:qqqqqqqqqqqqqqqqqq"),
    ],
)
def test_unknown_id_suggests_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(EnvError) as caught:
        make_vector(name, 2)
    assert f"'{name.rpartition(':')[2]}'" in caught.value.message and hint in caught.value.fix


def test_unknown_id_names_installed_packages_that_may_register_it(tmp_path, monkeypatch) -> None:
    needs = {"flap": ["gymnasium>=1", "numpy"], "walk": ["Gymnasium (>=0.29)"], "other": ["numpy"]}
    needs |= {"robots": ["gymnasium-robotics"], "maybe": ["gymnasium>=1; extra == 'play'"]}
    for name, lines in needs.items():
        about = tmp_path / f"{name}_birds-1.0.dist-info"
        about.mkdir()
        listed = "".join(f"Requires-Dist: {line}\n" for line in lines)
        (about / "METADATA").write_text(f"Name: {name}-birds\nVersion: 1.0\n{listed}")
        (about / "top_level.txt").write_text(f"{name}_birds\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(EnvError) as caught:
        find_spec("FlapBird-v0")
    expected = "Installed, and may register it: flap_birds, walk_birds."
    assert caught.value.fix is not None and caught.value.fix.endswith(expected)


class Faulty(Counter):
    """Does what is often wrong."""

    def __init__(self, size):
        super().__init__()


class OldReset(Counter):
    def reset(self):
        return super().reset()


class WantsOptions(Counter):
    def reset(self, *, seed=None, options=None):
        self.level = options["level"]
        return super().reset(seed=seed)


class Leaves(Counter):
    def step(self, action):
        raise SystemExit("no licence")


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_an_environment_that_ends_the_program_is_told_of(backend: Any) -> None:
    with make_vector(Leaves, 2, backend=backend) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvError, match=r"Environment 0 .*step\(\): SystemExit: no licence"):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("kind", "fix", "lines"),
    [
        (Faulty, "env_kwargs='{size: 9}'", None),
        (OldReset, "def reset(self, *, seed=None, options=None)", 1),
        (WantsOptions, "reset() is called with options=None", 6),
    ],
)
def test_frequent_faults_have_a_fix_and_no_frames_of_wrappers(
    kind: Any, fix: str, lines: int | None
) -> None:
    gym.register("Faulty-v0", entry_point=kind)
    try:
        with pytest.raises(EnvError) as caught:
            make_vector("Faulty-v0", 2, backend="sync").reset(seed=0)
    finally:
        gym.registry.pop("Faulty-v0")
    assert caught.value.fix is not None and fix in caught.value.fix
    if lines is not None:
        assert len(caught.value.message.splitlines()) == lines, caught.value.message


def test_an_id_may_name_its_module(tmp_path, monkeypatch) -> None:
    (tmp_path / "corner_of_mine.py").write_text(
        "import gymnasium as gym\nfrom env_zoo import Counter\n"
        "gym.register('Corner-v0', entry_point=Counter)\n"
    )
    (tmp_path / "broken_corner.py").write_text("1 / 0\n")
    (tmp_path / "hungry_corner.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    envs = make_vector("corner_of_mine:Corner-v0", 2)
    assert envs.reset(seed=0).tolist() == [[0], [0]]
    gym.registry.pop("Corner-v0")
    with pytest.raises(EnvError, match="no module 'nowhere'"):
        make_vector("nowhere:Corner-v0")
    with pytest.raises(EnvError, match="ZeroDivisionError"):
        make_vector("broken_corner:Corner-v0")
    with pytest.raises(EnvError, match="no_such_thing_at_all"):
        make_vector("hungry_corner:Corner-v0")


@pytest.mark.parametrize(
    ("name", "kwargs", "match"),
    [
        ("FrozenLake-v1", {"is_slipery": True}, "no setting 'is_slipery'.*'is_slippery'"),
        ("CartPole-v1", {"nonsense_here": 1}, "no setting 'nonsense_here'"),
        ("HalfCheetah-v5", {"nonsense_here": 1}, "nonsense_here"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "could not be made: KeyError: '9x9'"),
    ],
)
def test_bad_settings_are_named(name: str, kwargs: dict, match: str) -> None:
    with pytest.raises(EnvError, match=f"(?s){match}"):
        make_vector(name, 2, env_kwargs=kwargs)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("LunarLander-v3", "gymnasium.envs.box2d", "box2d"),
        ("HalfCheetah-v5", "gymnasium.envs.mujoco", "mujoco"),
    ],
)
def test_missing_package_names_the_extra(monkeypatch, name, module, extra) -> None:
    for loaded in [key for key in sys.modules if key.startswith(module)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=rf"(?s){name}.*assay\[{extra}\]"):
        make_vector(name, 2)


def test_missing_ale_names_the_extra(monkeypatch) -> None:
    for key in [key for key in sys.modules if key.split(".")[0] == "ale_py"]:
        monkeypatch.delitem(sys.modules, key)
    monkeypatch.setattr(sys, "meta_path", [_Without("ale_py"), *sys.meta_path])
    registry = {k: v for k, v in gym.registry.items() if "ale_py" not in str(v.entry_point)}
    monkeypatch.setattr(gym.envs.registration, "registry", registry)
    monkeypatch.setattr(gym, "registry", registry)
    for name in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        with pytest.raises(MissingExtraError, match=rf"(?s){name}.*assay\[atari\]"):
            find_spec(name)


class _Without:
    """A finder that says a package is not there."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((Counter(), 2), "one environment.*function"),
        ((SyncVectorEnv([Counter]), 2), "num_envs=2.*has 1"),
        ((Counter, 0), "num_envs=0"),
        ((lambda: 3,), "returned a int"),
        ((3,), "is a int"),
        ((None,), "is a NoneType"),
    ],
)
def test_what_does_not_go_together(arguments, match: str) -> None:
    with pytest.raises(EnvError, match=f"(?s){match}"):
        make_vector(*arguments)


@pytest.mark.parametrize(
    ("env", "options", "match"),
    [
        ("CartPole-v1", {"backend": "fast"}, "Unknown backend 'fast'"),
        ("FrozenLake-v1", {"backend": "native"}, "native version of 'FrozenLake-v1'"),
        ("FrozenLake-v1", {"backend": "vector"}, "no vector version"),
        (Counter, {"backend": "native"}, "needs an environment's id"),
        (Counter(), {"backend": "processes"}, "exists already"),
        (Counter(), {"env_kwargs": {"length": 3}}, "'length'.*cannot be set"),
        (Counter, {"backend": "processes", "workers": 0}, "workers=0"),
    ],
)
def test_backends_that_do_not_fit(env, options, match: str) -> None:
    with pytest.raises(EnvError, match=f"(?s){match}"):
        make_vector(env, **options)


def test_differing_copies_are_refused() -> None:
    spaces = [gym.spaces.Discrete(2), gym.spaces.Discrete(3)]

    class Differs(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.pop()

    with pytest.raises(EnvError, match=r"Environment 1 .*action_space"):
        make_vector(Differs, 2)


def test_a_failing_factory_shows_its_own_traceback() -> None:
    def broken() -> gym.Env:
        raise RuntimeError("no such arena")

    with pytest.raises(EnvError) as caught:
        make_vector(broken, 2)
    assert "Environment 0 of" in caught.value.message
    assert "no such arena" in caught.value.message and "in broken" in caught.value.message


def run_into(what: str, **options) -> EnvError:
    with make_vector(partial(Spoiler, what), 2, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvError) as caught:
            for _ in range(4):
                envs.step(np.zeros(2, np.int64))
        assert envs.steps == 3
    return caught.value


def test_an_exception_shows_the_environments_own_traceback() -> None:
    message = run_into("raise").message
    assert "Environment 0 of" in message and "failed in step()" in message
    assert "KeyError: 'the pantry is empty'" in message
    assert "env_zoo.py" in message
    assert os.path.join("assay", "envs") not in message


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("nan_obs", r"Environment 0 .*observation whose component \[0\] is nan at step 3"),
        ("inf_obs", r"component \[0\] is -inf at step 3"),
        ("nan_reward", r"Environment 0 .*the reward nan at step 3"),
        ("nan_final", r"component \[0\] is nan at step 3, at the end of an episode"),
        ("text_reward", "reward is '1.0'; a number was expected"),
        ("no_reward", "reward is None; a number was expected"),
        ("shape", r"shape \(2,\)"),
        ("dtype", "dtype <U1"),
        ("four", r"does not return \(observation, reward, terminated, truncated, info\)"),
    ],
)
def test_bad_values_name_the_environment_and_the_step(what: str, match: str) -> None:
    error = run_into(what)
    assert "Environment 0" in error.message
    assert re.search(match, error.message)


def test_only_the_failing_row_is_named() -> None:
    pending = [Counter(9), Spoiler("nan_obs"), Counter(9)]
    envs = make_vector(lambda: pending.pop(0), 3)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"Environment 1 of .* at step 3"):
        for _ in range(3):
            envs.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
@pytest.mark.parametrize("what", ["nan_obs", "nan_reward", "nan_final", "raise"])
def test_bad_values_of_a_vector_environment(mode: str, what: str) -> None:
    env = SyncVectorEnv([Counter, partial(Spoiler, what)], autoreset_mode=mode)
    envs = make_vector(env)
    envs.reset(seed=0)
    match = "the pantry is empty" if what == "raise" else r"Environment 1 .* at step 3"
    with pytest.raises(EnvError, match=match):
        for _ in range(3):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.filterwarnings("error")
def test_large_finite_values_are_fine() -> None:
    class Huge(Counter):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

        def observe(self) -> np.ndarray:
            return np.array([3e38], np.float32)

    envs = make_vector(Huge)
    envs.reset(seed=0)
    assert np.isfinite(envs.step(np.array([0]))[0]).all()


def test_a_diverged_policy_is_reported() -> None:
    class Follows(Counter):
        action_space = gym.spaces.Box(-1, 1, (1,))

        def step(self, action):
            return np.array(action, np.float32), 0.0, False, False, {}

    envs = make_vector(Follows, 2)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="policy has diverged") as caught:
        envs.step(np.array([[0], [np.nan]], np.float32))
    assert "Environment 1" in caught.value.message
    with pytest.raises(EnvError, match="nan"):
        native = make_vector("Pendulum-v1", 2)
        native.reset(seed=0)
        native.step(np.array([[0], [np.nan]], np.float32))


def test_nan_in_an_entry_of_a_dict_and_in_reset() -> None:
    class Parts(Counter):
        observation_space = gym.spaces.Dict(a=Counter.observation_space, n=gym.spaces.Discrete(5))

        def observe(self):
            return {"a": np.array([np.nan if self.t == 2 else 0.0], np.float32), "n": self.t}

    envs = make_vector(Parts)
    envs.reset(seed=0)
    envs.step(np.array([0]))
    with pytest.raises(EnvError, match=r"entry 'a'\[0\] is nan at step 2"):
        envs.step(np.array([0]))

    class Early(Counter):
        def observe(self):
            return np.array([np.inf], np.float32)

    with pytest.raises(EnvError, match=r"is inf in reset\(\)"):
        make_vector(Early).reset(seed=0)


def test_make_env_is_plain_gymnasium() -> None:
    env = make_env("Acrobot-v1", env_kwargs={"render_mode": "rgb_array"})
    assert isinstance(env, gym.Env) and env.render_mode == "rgb_array"


def test_a_rewards_dtype_is_always_floating() -> None:
    class Whole(Counter):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, int(reward), *rest

    envs = make_vector(Whole)
    envs.reset(seed=0)
    assert envs.step(np.array([0]))[1].dtype.kind == "f"


def test_a_reset_without_infos_is_named() -> None:
    class Bare(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32)

    with pytest.raises(EnvError, match=r"as info from reset\(\); a dict was expected"):
        make_vector(Bare, 1)
