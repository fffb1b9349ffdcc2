# ruff: noqa: PLR0913, PLR0917 - the generator has six words of input
"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): the noise of every draw."""

import numpy as np

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.memory import Words

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


@device
def philox(
    key0: np.uint64,
    key1: np.uint64,
    counter0: np.uint64,
    counter1: np.uint64,
    counter2: np.uint64,
    counter3: np.uint64,
    words: Words,
) -> None:
    """Ten rounds; all arguments uint64 below 2**32, `words` takes four such."""
    c0, c1, c2, c3 = counter0, counter1, counter2, counter3
    k0, k1 = key0, key1
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
