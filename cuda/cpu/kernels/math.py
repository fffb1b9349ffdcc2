"""Functions of numbers: exp for float32, without a table or a call, so that loops over it become vector code; noise.

The noise of every draw is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
"""

import math

import numpy as np

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.memory import Words, float_of_bits

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
_C0, _C1, _C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C4, _C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@device
def exp(x: np.float32) -> np.float32:
    """e**x to 2 units in the last place (Cephes, expf); 0 below -87, e**88 above 88."""
    inside = min(max(x, _LOWEST), _HIGHEST)
    rounded = inside * _LOG2_E + _ROUND
    power = rounded - _ROUND
    rest = inside - power * _LN2_HIGH
    rest = rest - power * _LN2_LOW
    series = ((((_C0 * rest + _C1) * rest + _C2) * rest + _C3) * rest + _C4) * rest + _C5
    value = series * (rest * rest) + rest + _ONE
    scale = float_of_bits((np.int32(power) + np.int32(127)) << np.int32(23))
    return value * scale if x >= _LOWEST else _ZERO


_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


@device
def noise(seed: np.uint64, position: int, block: int, words: Words) -> None:
    """The four words below 2**32 of tokens 4 * block and following: ten rounds of (block, position, 0, 0)."""
    c0, c1, c2, c3 = np.uint64(block), np.uint64(position), np.uint64(0), np.uint64(0)
    k0, k1 = seed & _MASK, seed >> _HALF_WORD
    for _ in range(10):
        product0 = _M0 * c0
        product1 = _M1 * c2
        c0 = (product1 >> _HALF_WORD) ^ c1 ^ k0
        c1 = product1 & _MASK
        c2 = (product0 >> _HALF_WORD) ^ c3 ^ k1
        c3 = product0 & _MASK
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    words[0] = c0
    words[1] = c1
    words[2] = c2
    words[3] = c3


@device
def gumbel(seed: np.uint64, position: int, token: int, words: Words) -> float:
    """One token's: -log(-log u) of its word's u = (word + ½) / 2³²."""
    noise(seed, position, int(token) >> 2, words)
    return -math.log(-math.log((np.float64(words[token & 3]) + 0.5) * 2.0**-32))
