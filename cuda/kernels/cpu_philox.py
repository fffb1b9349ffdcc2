"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): the noise of every draw."""

import numpy as np

from cuda.kernels.cpu_jit import device

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


@device
def philox(key0, key1, counter0, counter1, counter2, counter3, words):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913
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
