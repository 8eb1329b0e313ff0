"""Products of wide layers: when they are left to another library, and that they are the same."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from optim_support import Batch
from torch import Tensor

from assay.algorithms.shared import imagination
from assay.networks.mlp import mlp
from assay.optim import wide
from assay.optim.update import Objective, Step
from assay.optim.wide import has_wide_layers, wide_products
from assay.testing.algorithms import make_algorithm

SETTING: Any = getattr(torch.backends.mkldnn, "matmul", None)
pytestmark = pytest.mark.skipif(SETTING is None, reason="an early release of torch")


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    wide._is_exact.cache_clear()
    yield
    wide._is_exact.cache_clear()


@pytest.fixture
def zen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a processor on which it pays."""
    monkeypatch.setattr(wide, "beats_the_library", lambda: True)


class TestWhere:
    @pytest.mark.usefixtures("zen")
    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            ((3, 256, 256, 1), True),
            ((300, 192), True),
            ((3, 191, 256, 1), False),
            ((3, 400), False),
        ],
    )
    def test_by_layers(
        self, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], expected: bool
    ) -> None:
        monkeypatch.setattr(wide, "_is_exact", lambda: True)
        assert has_wide_layers([mlp((3, 4)), mlp(sizes)]) is expected

    def test_by_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wide, "beats_the_library", lambda: False)
        assert not has_wide_layers([mlp((256, 256))])

    @pytest.mark.usefixtures("zen")
    def test_not_with_products_of_half_the_digits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A processor with instructions for bfloat16 uses them."""
        real = Tensor.__matmul__

        def rough(a: Tensor, b: Tensor) -> Tensor:
            if a.dtype == torch.float32:
                return real(a.bfloat16().float(), b.bfloat16().float())
            return real(a, b)

        monkeypatch.setattr(Tensor, "__matmul__", rough)
        assert not has_wide_layers([mlp((256, 256))])


def test_the_setting_is_put_back() -> None:
    before = SETTING.fp32_precision
    with wide_products(False):
        assert SETTING.fp32_precision == before
    with pytest.raises(KeyError), wide_products(True):
        assert SETTING.fp32_precision == "bf16"
        raise KeyError
    assert SETTING.fp32_precision == before


def test_blocks_of_two_threads_that_overlap() -> None:
    before = SETTING.fp32_precision
    one, two = wide_products(True), wide_products(True)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert SETTING.fp32_precision == "bf16"  # two is not done
    two.__exit__(None, None, None)
    assert SETTING.fp32_precision == before


@pytest.mark.parametrize("on", [True, False])
def test_what_imagines_and_plans_uses_them_too(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(imagination, "_imagine", lambda *given: seen.append(SETTING.fp32_precision))
    imagination.imagine(SimpleNamespace(model_step=SimpleNamespace(wide=on)), torch.zeros(1), 1)  # type: ignore[arg-type]
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    policy = make_algorithm("tdmpc2", box, box).policy
    plan = policy._plan

    def watched(inputs: Any) -> Any:
        seen.append(SETTING.fp32_precision)
        return plan(inputs)

    policy._wide, policy._plan = on, watched
    policy.act(np.zeros((1, 2), np.float32), policy.initial_carry(1))
    assert seen == ["bf16" if on else SETTING.fp32_precision] * 2


@pytest.mark.usefixtures("zen")
def test_updates_are_those_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against double precision; and products outside of updates are none of its business."""
    if not wide._is_exact():
        pytest.skip("this processor uses bfloat16 in such products")

    def make(dtype: torch.dtype) -> Step:
        torch.manual_seed(0)
        module = mlp((17, 256, 256, 6), "relu").to(dtype)

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            seen.append(SETTING.fp32_precision)
            return (module(batch["x"]) - batch["y"]).square().mean(), {}

        return Step([Objective("fit", module, loss)])

    seen: list[str] = []
    before = SETTING.fp32_precision
    single, double = make(torch.float32), make(torch.float64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        batch = {
            "x": torch.randn(64, 17, generator=generator),
            "y": torch.randn(64, 6, generator=generator),
        }
        found = single(batch, 1e-3)
        expected = double({name: value.double() for name, value in batch.items()}, 1e-3)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-6, check_dtype=False)
    assert set(seen) == {"bf16"} and single.wide
    assert SETTING.fp32_precision == before
