"""Recorded transitions: what is read, what is refused, and what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.buffers import dataset
from assay.buffers.dataset import Dataset, load_dataset
from assay.core.errors import ConfigError, DataError
from assay.envs.spaces import ActionMap, ObservationMap

OBS = spaces.Box(-1.0, 1.0, (2,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([0.5, np.inf]), dtype=np.float64)


def columns(count: int = 6) -> dict[str, np.ndarray]:
    """Return transitions that count on: each field tells which one it belongs to."""
    number = np.arange(count)
    obs = np.stack([number, number + 0.5], 1)
    return {
        "obs": obs.astype(np.float32),
        "action": number % 3 + 2,
        "reward": number * 10.0,
        "next_obs": (obs + 1).astype(np.float32),
        "terminated": number == 2,
        "truncated": number == 4,
    }


def load(
    path: Path, observation: Any = OBS, action: Any = None, mask_size: int | None = None
) -> Dataset:
    action = spaces.Discrete(3, start=2) if action is None else action
    rng = np.random.default_rng(0)
    maps = ObservationMap(observation, mask_size), ActionMap(action)
    return load_dataset(path, *maps, gamma=0.9, rng=rng)


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


class TestSample:
    def test_transitions_come_back_whole(self, tmp_path: Path) -> None:
        data = load(write(tmp_path / "a.npz", **columns()))
        assert len(data) == 6
        batch = data.sample(200)
        number = batch.obs[:, 0]
        assert set(number.tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
        assert torch.equal(batch.obs[:, 1], number + 0.5)
        assert torch.equal(batch.next_obs, batch.obs + 1)
        assert torch.equal(batch.reward, 10 * number)
        assert torch.equal(batch.action, number.long() % 3)  # canonical: it starts at 0
        assert torch.equal(batch.terminated, (number == 2).float())
        assert torch.equal(batch.truncated, (number == 4).float())
        assert torch.equal(batch.discount, torch.full((200,), 0.9))
        assert {batch.obs.dtype, batch.reward.dtype, batch.discount.dtype} == {torch.float32}

    def test_a_batch_is_the_caller_s(self, tmp_path: Path) -> None:
        data = load(write(tmp_path / "a.npz", **columns()))
        data.sample(50).obs.fill_(7.0)
        assert float(data.sample(50).obs.max()) == 5.5

    def test_state_goes_round(self, tmp_path: Path) -> None:
        one, two = (load(write(tmp_path / "a.npz", **columns())) for _ in range(2))
        one.sample(7)
        two.load_state(one.state())
        assert torch.equal(one.sample(9).obs, two.sample(9).obs)

    def test_of_a_box(self, tmp_path: Path) -> None:
        """Actions of float64 become float32, and the infinite bound holds nothing back."""
        action = np.array([[-2.0, 0.0], [0.5, 1e6], [0.5 + 1e-7, 3.0]])
        data = load(write(tmp_path / "a.npz", **columns(3) | {"action": action}), action=BOX)
        assert data.action.dtype == np.float32
        np.testing.assert_allclose(data.action, action, rtol=1e-6)

    def test_of_parts(self, tmp_path: Path) -> None:
        space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (4, 4, 1), np.uint8),
                "arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2,), np.float64)}),
                "gear": spaces.Discrete(3, start=1),
            }
        )
        rng = np.random.default_rng(0)
        parts = {
            "camera": rng.integers(0, 256, (6, 4, 4, 1), np.uint8),
            "arm/joints": rng.uniform(-1, 1, (6, 2)),
            "gear": rng.integers(1, 4, 6),
        }
        fields = {k: v for k, v in columns().items() if "obs" not in k}
        for prefix in ("obs", "next_obs"):
            fields |= {f"{prefix}/{name}": part for name, part in parts.items()}
        data = load(write(tmp_path / "a.npz", **fields), space)
        assert data.obs["camera"].dtype == np.uint8
        np.testing.assert_array_equal(data.obs["camera"], parts["camera"])
        np.testing.assert_array_equal(data.obs["gear"], parts["gear"] - 1)
        assert data.next_obs["arm/joints"].dtype == np.float32
        assert data.sample(5).obs["camera"].shape == (5, 4, 4, 1)

    def test_of_an_environment_with_masks(self, tmp_path: Path) -> None:
        fields = columns()
        mask = np.eye(3, dtype=bool)[fields["action"] - 2]
        for prefix in ("obs", "next_obs"):
            fields[f"{prefix}/obs"] = fields.pop(prefix)
            fields[f"{prefix}/action_mask"] = mask
        data = load(write(tmp_path / "a.npz", **fields), mask_size=3)
        assert data.obs["action_mask"].dtype == np.int8
        np.testing.assert_array_equal(data.obs["action_mask"], mask)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda fields: {k: v for k, v in fields.items() if k != name}


def with_value(name: str, place: Any, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        array = fields[name].astype(type(value)) if isinstance(value, float) else fields[name]
        array[place] = value
        return fields | {name: array}

    return change


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (without("reward"), r"lacks reward; it holds obs, action, next_obs"),
            (lambda f: {}, r"lacks obs, next_obs, action, .*; it holds nothing"),
            (lambda f: {k: v[:0] for k, v in f.items()}, "holds no transitions"),
            (lambda f: f | {"reward": f["reward"][:5]}, r"different numbers of rows: .*reward 5"),
            (lambda f: f | {"reward": np.array(1.0)}, r"numbers of rows: .*reward none"),
            (lambda f: f | {"obs": f["obs"][:, :1]}, r"'obs' .* shape \(1,\); expected \(2,"),
            (lambda f: f | {"reward": f["obs"][:, :1]}, r"'reward' .* \(1,\); expected \(\)"),
            (with_value("obs", (3, 1), np.nan), "Row 3 of 'obs' .* nan; expected a finite"),
            (with_value("next_obs", (4, 0), np.inf), "Row 4 of 'next_obs' .* the value inf"),
            (with_value("reward", 5, np.nan), "Row 5 of 'reward' .* nan"),
            (with_value("action", 1, 5), r"Row 1 of 'action' .* 5; expected a value of Discrete"),
            (with_value("action", 1, 1), "Row 1 of 'action' .* the value 1"),
            (lambda f: f | {"action": f["action"] * 1.0}, "'action' .* float64; expected int64"),
            (lambda f: f | {"terminated": f["reward"]}, "Row 1 of 'terminated' .* expected true"),
            (lambda f: f | {"obs": f["obs"].astype(str)}, "'obs' .* type <U"),
        ],
    )  # fmt: skip
    def test_fields(
        self, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
    ) -> None:
        with pytest.raises(DataError, match=message) as caught:
            load(write(tmp_path / "a.npz", **change(columns())))
        assert "a.npz" in caught.value.message and caught.value.fix

    def test_actions_beyond_a_box(self, tmp_path: Path) -> None:
        action = np.array([[-2.0, 0.0], [0.6, 1.0], [0.0, 3.0]])
        with pytest.raises(DataError, match=r"Row 1 of 'action' .* 0.6; expected a value of Box"):
            load(write(tmp_path / "a.npz", **columns(3) | {"action": action}), action=BOX)

    def test_images_of_another_type(self, tmp_path: Path) -> None:
        image = np.zeros((6, 4, 4, 1), np.float32)
        path = write(tmp_path / "a.npz", **columns() | {"obs": image, "next_obs": image})
        with pytest.raises(DataError, match="type float32; expected uint8"):
            load(path, spaces.Box(0, 255, (4, 4, 1), np.uint8))

    def test_a_part_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"lacks obs/a, next_obs/a"):
            load(write(tmp_path / "a.npz", **columns()), spaces.Dict({"a": OBS}))


class TestBrokenFile:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"There is no file '.*a.npz'"):
            load(tmp_path / "a.npz")

    def test_of_no_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a.npz").touch()
        with pytest.raises(DataError, match="is empty or cut short"):
            load(tmp_path / "a.npz")

    @pytest.mark.parametrize("compressed", [False, True])
    def test_cut_short_anywhere(self, tmp_path: Path, compressed: bool) -> None:
        path = tmp_path / "a.npz"
        (np.savez_compressed if compressed else np.savez)(path, **columns(50))
        whole = path.read_bytes()
        for length in range(1, len(whole), len(whole) // 40):
            path.write_bytes(whole[:length])
            with pytest.raises(DataError):
                load(path)

    @pytest.mark.parametrize("compressed", [False, True])
    def test_with_a_wrong_byte(self, tmp_path: Path, compressed: bool) -> None:
        """A flipped byte is refused, or it was not in what is read."""
        path = tmp_path / "a.npz"
        (np.savez_compressed if compressed else np.savez)(path, **columns(50))
        whole = path.read_bytes()
        refused = 0
        for place in range(0, len(whole), len(whole) // 60):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
            try:
                data = load(path)
            except DataError:
                refused += 1
            else:
                np.testing.assert_array_equal(data.reward, np.arange(50) * 10)
        assert refused > 20

    @pytest.mark.parametrize("content", [b"obs,action\n1,2\n", b"\x80\x04K\x01.", b"PK\x03\x04"])
    def test_of_another_kind(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(DataError, match="is not a whole NPZ file of plain arrays"):
            load(tmp_path / "a.npz")

    def test_of_a_single_array(self, tmp_path: Path) -> None:
        with open(tmp_path / "a.npz", "wb") as file:
            np.save(file, np.zeros(3))
        with pytest.raises(DataError, match="is not a whole NPZ file"):
            load(tmp_path / "a.npz")

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="Cannot read"):
            load(tmp_path)

    def test_python_objects_are_not_loaded(self, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> Any:
                return (Path.touch, (tmp_path / "sprung",))

        objects = np.array([Trap()] * 6, dtype=object)
        path = tmp_path / "a.npz"
        np.savez(path, **columns() | {"reward": objects})
        with pytest.raises(DataError, match="Object arrays cannot be loaded"):
            load(path)
        assert not (tmp_path / "sprung").exists()

    def test_too_large_for_the_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a small file unpacks to is known before it is unpacked."""
        path = tmp_path / "a.npz"
        np.savez_compressed(path, **columns() | {"obs": np.zeros((1000, 100, 2))})
        check = dataset.require_memory
        monkeypatch.setattr(
            dataset, "require_memory", lambda needed, what: check(needed, what, available=10**6)
        )
        with pytest.raises(ConfigError, match=r"The data in '.*' needs 1.5 MiB of memory"):
            load(path)
