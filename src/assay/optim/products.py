"""Products of matrices for compiled steps, on one thread of a processor with wide registers.

The library that torch hands them to copies both matrices into a layout of its own first. For the
small layers of reinforcement learning that is a fifth of the work. Here the left matrix is read
where it is, and of the right one 96 rows of 64 columns at a time, which the first cache holds. With
a large left matrix, which goes through the caches once for each such part, it is 256 rows.

On processors of AMD that library (MKL) uses half of a wide register. Those that work on whole ones
at once, from Zen 5 on, do twice as much here, in wide layers as well.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_COLUMNS = 64  # four registers of sixteen numbers
_LEAST = 300_000  # products of two numbers; with fewer, a call costs what it gains
_WIDEST = 128  # columns; beyond, the library's layout pays: SAC with 256 was 6 % slower
_FEWEST = 16  # rows of a wider product: with fewer, laying out the right matrix does not pay
_ZEN_5 = 26  # the number of its family

# A part of the steps that have such products. Inductor puts "extern" in front of it.
_SOURCE = r"""AOTITorchError aoti_torch_cpu_product(
    AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*);
typedef float assay_numbers __attribute__((vector_size(64), aligned(4), may_alias));
#define ASSAY_EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
#define ASSAY_TILE(ROWS) \
  static __attribute__((noinline, optimize("O3"))) void assay_tile_##ROWS( \
      const float* a, int64_t down, int64_t along, const float* b, int64_t depth, \
      float* c, int64_t width, bool more) { \
    assay_numbers sum[ROWS][4], right[4]; \
    const assay_numbers zero = {}; \
    ASSAY_EACH(i, ROWS) ASSAY_EACH(j, 4) \
      sum[i][j] = more ? *(assay_numbers*)(c + i * width + 16 * j) : zero; \
    for (int64_t k = 0; k < depth; k++) { \
      ASSAY_EACH(j, 4) right[j] = *(const assay_numbers*)(b + 64 * k + 16 * j); \
      ASSAY_EACH(i, ROWS) { \
        const float left = a[i * down + k * along]; \
        ASSAY_EACH(j, 4) sum[i][j] += left * right[j]; \
      } \
    } \
    ASSAY_EACH(i, ROWS) ASSAY_EACH(j, 4) *(assay_numbers*)(c + i * width + 16 * j) = sum[i][j]; \
  }
ASSAY_TILE(6)
ASSAY_TILE(3)
ASSAY_TILE(1)
__attribute__((optimize("O3"))) AOTITorchError aoti_torch_cpu_product(
    AtenTensorHandle left, AtenTensorHandle right, AtenTensorHandle* result) {
  int64_t *size, *other, *step, *down;
  float *a, *b, *c;
  float panel[256 * 64] __attribute__((aligned(64)));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(left, &size));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(right, &other));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(left, &step));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(right, &down));
  const int64_t rows = size[0], inner = size[1], width = other[1];
  const int64_t most = rows < 2048 ? 96 : 256;
  const int64_t shape[2] = {rows, width}, strides[2] = {width, 1};
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      2, shape, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, result));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(left, (void**)&a));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(right, (void**)&b));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(*result, (void**)&c));
  for (int64_t n = 0; n < width; n += 64)
    for (int64_t k = 0; k < inner; k += most) {
      const int64_t depth = inner - k < most ? inner - k : most;
      const float* part = b + k * down[0] + n * down[1];
      if (down[0] != 64 || down[1] != 1) {
        if (down[1] == 1)
          for (int64_t i = 0; i < depth; i++)
            ASSAY_EACH(j, 4) *(assay_numbers*)(panel + 64 * i + 16 * j) =
                *(const assay_numbers*)(part + i * down[0] + 16 * j);
        else
          for (int j = 0; j < 64; j++)
            for (int64_t i = 0; i < depth; i++)
              panel[64 * i + j] = part[i * down[0] + j * down[1]];
        part = panel;
      }
      for (int64_t m = 0; m < rows;) {
        const float* x = a + m * step[0] + k * step[1];
        float* y = c + m * width + n;
        const int64_t now = rows - m >= 6 ? 6 : rows - m >= 3 ? 3 : 1;
        (now == 6 ? assay_tile_6 : now == 3 ? assay_tile_3 : assay_tile_1)(
            x, step[0], step[1], part, depth, y, width, k > 0);
        m += now;
      }
    }
  return AOTI_TORCH_SUCCESS;
}"""


@torch.library.custom_op("assay::product", mutates_args=())
def product(left: Tensor, right: Tensor) -> Tensor:
    """Return A B; compiled, it is the function above."""
    return left @ right


@product.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def fits(rows: int, inner: int, columns: int, dtype: torch.dtype) -> bool:
    """Return whether a product of [rows, inner] and [inner, columns] is faster here."""
    return (
        dtype == torch.float32
        and columns % _COLUMNS == 0
        and (columns <= _WIDEST or (rows >= _FEWEST and beats_the_library()))
        and rows * inner * columns >= _LEAST
        and torch.get_num_threads() == 1
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and bool(options())
    )


@functools.cache
def beats_the_library() -> bool:
    """Return whether this processor works on whole wide registers, and MKL does not."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    family = re.search(r"^cpu family\s*: (\d+)$", told, re.MULTILINE)
    return "AuthenticAMD" in told and family is not None and int(family[1]) >= _ZEN_5


def options() -> dict[str, Any]:
    """Return what Inductor is told, so that it knows the function; early releases cannot be."""
    from torch._inductor import config

    name = "custom_ops_to_c_shims"
    if not hasattr(config.aot_inductor, name):
        return {}
    return {f"aot_inductor.{name}": {torch.ops.assay.product.default: [_SOURCE]}}
