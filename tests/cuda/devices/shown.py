"""Devices that show the logits of their last pass: [R, V], a copied row for each token that it sampled."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cuda.cpu.device import CpuDevice
from cuda.devices.rows import Drawn
from cuda.gpu.batch import Extent
from cuda.gpu.device import GpuDevice

Floats = npt.NDArray[np.float32]


class ShownCpuDevice(CpuDevice):
    @property
    def logits(self) -> Floats:
        state, ops = self._prepared.state, self._ops
        assert ops is not None
        return ops.logits[: state.batch.num_sampled, : state.spec.vocab_size].copy()


class ShownGpuDevice(GpuDevice):
    _places: Sequence[int] = ()

    @property
    def logits(self) -> Floats:
        self._backend.synchronize()
        runner, ranks = self._running.runner, self._running.ranks
        rows = runner._buffers.logits if ranks is None else ranks.logits
        return rows[list(self._places)].cpu().numpy()

    def _drawn(self, extent: Extent) -> list[Drawn]:
        self._places = extent.places
        return super()._drawn(extent)
