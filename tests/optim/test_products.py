"""Products of matrices that are compiled into steps: where they are used, and what they give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from assay.optim import compile_cache, products
from assay.optim.mode import has_compiler
from assay.optim.rewrites import rewrite
from assay.testing.algorithms import quick_compiler, session_cache

FITTING = (1200, 21, 64, torch.float32)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be one thread of a processor with wide registers."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(products, "beats_the_library", lambda: False)


@pytest.mark.usefixtures("wide")
class TestWhere:
    @pytest.mark.parametrize(
        ("rows", "inner", "columns", "dtype", "fits"),
        [
            (*FITTING, True),
            (21, 1200, 64, torch.float32, True),
            (256, 256, 256, torch.float32, False),  # wide: the library is as fast
            (256, 128, 128, torch.float32, True),
            (1200, 21, 80, torch.float32, False),  # not whole tiles
            (64, 64, 64, torch.float32, False),  # too little to do
            (1200, 21, 64, torch.float64, False),
        ],
    )
    def test_by_size(
        self, rows: int, inner: int, columns: int, dtype: torch.dtype, fits: bool
    ) -> None:
        assert products.fits(rows, inner, columns, dtype) is fits

    def test_wide_ones_where_the_library_uses_half_of_a_register(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(products, "beats_the_library", lambda: True)
        assert products.fits(256, 256, 256, torch.float32)
        assert products.fits(16, 1024, 1024, torch.float32)
        assert not products.fits(15, 1024, 1024, torch.float32)  # few rows
        assert not products.fits(256, 256, 250, torch.float32)

    @pytest.mark.parametrize(
        ("vendor", "family", "beats"),
        [("AuthenticAMD", 25, False), ("AuthenticAMD", 26, True), ("GenuineIntel", 26, False)],
    )
    def test_by_processor(
        self, monkeypatch: pytest.MonkeyPatch, vendor: str, family: int, beats: bool
    ) -> None:
        told = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 2\n"
        monkeypatch.undo()
        monkeypatch.setattr(products.Path, "read_text", lambda self: told)
        products.beats_the_library.cache_clear()
        assert products.beats_the_library() is beats
        monkeypatch.undo()
        products.beats_the_library.cache_clear()

    def test_not_with_narrow_registers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert not products.fits(*FITTING)

    def test_not_where_the_library_has_several_threads(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        assert not products.fits(*FITTING)

    def test_a_graph_has_them_also_turned(self) -> None:
        given = torch.randn(1200, 21), torch.randn(21, 64), torch.randn(1200, 64)

        def program(x: Tensor, w: Tensor, g: Tensor) -> list[Tensor]:
            return [x @ w, g.t() @ x]  # the second is [64, 21], which is narrow

        graph = make_fx(program)(*given)
        rewrite(graph)
        targets = [node.target for node in graph.graph.nodes]
        assert targets.count(torch.ops.assay.product.default) == 2
        for found, right in zip(graph(*given), program(*given), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_compiled_they_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beyond whole tiles, sums in several parts, several panels, and all layouts."""
    if not has_compiler() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("no C++ compiler, or no wide registers")
    monkeypatch.setenv("ASSAY_CACHE", str(session_cache(tmp_path_factory)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(products, "_LEAST", 0)
    sizes = [(12, 96, 64), (10, 97, 128), (3, 200, 192), (1, 1, 64), (2_051, 300, 64)]
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(shape, generator=generator)
        for rows, inner, columns in sizes
        for shape in ((rows, inner), (inner, rows), (inner, columns), (columns, inner))
    ]

    def program(*given: Tensor) -> list[Tensor]:
        found = []
        for i in range(0, len(given), 4):
            a, a_turned, b, b_turned = given[i : i + 4]
            found += [x @ y for x in (a, a_turned.t()) for y in (b, b_turned.t())]
        return found

    def nothing() -> tuple[list[str], list[str]]:
        return [], []

    with quick_compiler():
        made = compile_cache.compiled(program, given, name="products", names=nothing)
    found = compile_cache.load(made.path)(given)
    for one, right in zip(found, program(*given), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-5, atol=1e-4)
