from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.cuda.emulator.launching import run

CONVERT = """
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_fp8.h"
extern "C" __global__ void k(const float* in, unsigned short* half, unsigned short* bf16, unsigned char* e4m3) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    half[i] = __half_as_ushort(__float2half_rn(in[i]));
    bf16[i] = __bfloat16_as_ushort(__float2bfloat16_rn(in[i]));
    e4m3[i] = __nv_cvt_float_to_fp8(in[i], __NV_SATFINITE, __NV_E4M3);
}"""

WIDEN = """
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_fp8.h"
extern "C" __global__ void k(float* half, float* bf16, float* e4m3) {
    unsigned short i = blockIdx.x * blockDim.x + threadIdx.x;
    half[i] = __half2float(__ushort_as_half(i));
    bf16[i] = __bfloat162float(__ushort_as_bfloat16(i));
    e4m3[i] = __half2float(__ushort_as_half(__nv_cvt_fp8_to_halfraw(i & 255, __NV_E4M3).x));
}"""


def samples() -> NDArray[np.float32]:
    """Every exponent, ties of each format, zeros, infinities; no NaN."""
    random = np.random.default_rng(0)
    wide = random.integers(0, 2**32, 8192, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = (random.standard_normal(8192) * np.exp2(random.integers(-30, 20, 8192))).astype(np.float32)
    halves = np.arange(-4096, 4096, dtype=np.float32) / 4096
    edges = np.array([0, -0.0, np.inf, -np.inf, 65504, 65519, 65520, 6e-8, 2.9e-8, 448, 449], np.float32)
    values = np.concatenate([wide, usual, halves, np.resize(edges, 8192)])
    return np.where(np.isnan(values), np.float32(1.5), values)


@pytest.fixture(scope="module")
def narrowed() -> tuple[NDArray[np.float32], list[NDArray[Any]]]:
    x = samples()
    kinds = (np.uint16, np.uint16, np.uint8)
    return x, run(CONVERT, [x, *(np.zeros(x.shape, kind) for kind in kinds)], grid=len(x) // 256, block=256)[1:]


@pytest.fixture(scope="module")
def widened() -> list[NDArray[np.float32]]:
    return run(WIDEN, [np.zeros(65536, np.float32) for _ in range(3)], grid=256, block=256)


def test_float_to_half_rounds_as_numpy_does(narrowed: tuple[NDArray[np.float32], list[NDArray[Any]]]) -> None:
    with np.errstate(over="ignore"):
        assert np.array_equal(narrowed[1][0], narrowed[0].astype(np.float16).view(np.uint16))


def test_float_to_bfloat16_rounds_as_torch_does(narrowed: tuple[NDArray[np.float32], list[NDArray[Any]]]) -> None:
    expected = torch.from_numpy(narrowed[0]).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(narrowed[1][1], expected)


def test_float_to_fp8_rounds_as_torch_does_and_saturates(
    narrowed: tuple[NDArray[np.float32], list[NDArray[Any]]],
) -> None:
    within = np.clip(narrowed[0], -448, 448)
    expected = torch.from_numpy(within).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(narrowed[1][2], expected)


def test_every_code_widens_to_its_value(widened: list[NDArray[np.float32]]) -> None:
    codes = torch.arange(65536, dtype=torch.int32)
    dtypes = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    for have, dtype in zip(widened, dtypes, strict=True):
        bits = codes.to(torch.uint16) if dtype.itemsize == 2 else (codes & 255).to(torch.uint8)
        assert np.array_equal(have, bits.view(dtype).float().numpy(), equal_nan=True)
