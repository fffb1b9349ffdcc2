"""A GPU: torch's memory, GEMM, events and graphs; our cubins through CuPy; all on one stream.

Never runs Python from a stream. CuPy is imported when a `GpuBackend` is made, for machines without a GPU lack it.
Next: `launch`, the checks of each launch; `cubins`, the kernels' code.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cuda.gpu.backends.cubins import ARCHITECTURES, Cubin, cubin_of
from cuda.gpu.backends.launch import GpuLaunch, Size
from cuda.gpu.backends.nvrtc import MissingPart, find_compiler
from cuda.gpu.backends.sharing import GpuSharing
from cuda.kernels.backend import Launch

KERNELS = Path(__file__).parents[2] / "kernels"


def check_gpu(index: int) -> None:
    """MissingPart, in one line, if something that GPU number `index` needs is not there."""
    if torch.version.cuda is None:
        raise MissingPart(
            f"cuda:{index}: torch {torch.__version__} is built without CUDA; "
            "run `pip install --force-reinstall 'torch>=2.13,<2.14'` against PyPI, whose Linux build has it"
        )
    if not torch.cuda.is_available():
        raise MissingPart(
            f"cuda:{index}: torch finds no NVIDIA GPU; `nvidia-smi` must list it, "
            f"with a driver for CUDA {torch.version.cuda}, and CUDA_VISIBLE_DEVICES must not hide it"
        )
    num_gpus = torch.cuda.device_count()
    if not 0 <= index < num_gpus:
        raise MissingPart(f"cuda:{index}: there is no such GPU; torch sees {num_gpus}, counted from cuda:0")
    architecture_for(torch.cuda.get_device_capability(index), torch.cuda.get_device_name(index))
    _import_cupy(index)
    find_compiler()


def architecture_for(capability: tuple[int, int], name: str) -> str:
    """What to compile for: code for a smaller minor number runs on a larger one of the same major, never on another."""
    number = 10 * capability[0] + capability[1]
    fits = [target for target in ARCHITECTURES if number // 10 * 10 <= int(target[3:]) <= number]
    if not fits:
        served = ", ".join(f"{int(target[3:]) / 10:.1f}" for target in ARCHITECTURES)
        raise MissingPart(f"{name} has compute capability {number / 10:.1f}; the kernels are made for {served}")
    return fits[-1]


class GpuBackend:
    """See `Backend`. MissingPart as `check_gpu` raises it.

    Args:
        index: Which GPU, as torch counts them.
        sources: Folder of the `.cu` files.
    """

    def __init__(self, index: int, *, sources: Path = KERNELS) -> None:
        check_gpu(index)
        cupy = _import_cupy(index)
        properties = torch.cuda.get_device_properties(index)
        self.index = index
        self.device = torch.device("cuda", index)
        self.sharing = GpuSharing(cupy.cuda.runtime, index)
        self.architecture = architecture_for((properties.major, properties.minor), properties.name)
        self.num_multiprocessors: int = properties.multi_processor_count
        self.max_shared_bytes: int = cupy.cuda.runtime.deviceGetAttribute(
            cupy.cuda.runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, index
        )
        self._sources = sources
        self.driver = cupy.cuda.driver
        self._module = cupy.cuda.function.Module
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's
        self._launch_stream = cupy.cuda.Stream.from_external(self._stream)
        self._graph_pool = torch.cuda.graph_pool_handle()  # graphs run one after the other, so they may share it
        # The whole process's: fp32 means fp32, and a long row's partial sums are not rounded to bf16.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def kernels(self, source: str, names: Sequence[str], *, cooperative: bool = False) -> tuple[Launch, ...]:
        """See `Backend`. CompileError if NVRTC refuses the source."""
        self.enter()
        cubin = cubin_of(self._sources / source, names, self.architecture)
        module = self._module()
        module.load_file(str(cubin.path))
        return tuple(self._launch(module, cubin, name, cooperative=cooperative) for name in names)

    def _launch(self, module: Any, cubin: Cubin, name: str, *, cooperative: bool) -> GpuLaunch:  # noqa: ANN401 - CuPy's
        kernel = cubin.kernels[name]
        return GpuLaunch(
            name,
            kernel,
            _Loaded(self, module.get_function(kernel.lowered), cooperative=cooperative),
            device=self.device,
            max_shared_bytes=self.max_shared_bytes,
            cooperative=cooperative,
        )

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Backend`."""
        self.enter()
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Backend`."""
        self.enter()
        return torch.zeros(tuple(shape), dtype=dtype, device=self.device)

    def over(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `Backend`."""
        return torch.as_tensor(_Memory(address, num_bytes), device=self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Backend`."""
        self.enter()
        return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Backend`."""
        self.enter()
        target.copy_(source, non_blocking=True)

    def matmul(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """See `Backend`."""
        self.enter()
        if out.dtype != x.dtype:
            torch.mm(x, weight.t(), out_dtype=out.dtype, out=out)
            if bias is not None:
                out.add_(bias)
        elif bias is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(bias, x, weight.t(), out=out)

    def call(self, written: torch.Tensor, work: Callable[[], object]) -> None:  # noqa: ARG002 - the stream keeps order
        """See `Backend`."""
        self.enter()
        work()

    def record(self) -> "_Event":
        """See `Backend`."""
        self.enter()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        event.record(self._stream)
        return _Event(event)

    def capture(self, run: Callable[[], Any]) -> "_Graph":
        """See `Backend`. What `run` queues must have run once before: libraries set themselves up at a first call."""
        self.enter()
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using other GPUs meanwhile.
        with torch.cuda.graph(graph, pool=self._graph_pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return _Graph(graph, self.enter)

    def synchronize(self) -> None:
        """See `Backend`."""
        self._stream.synchronize()

    def free_bytes(self) -> int:
        """See `Backend`."""
        self.enter()
        torch.cuda.empty_cache()  # what torch holds but does not use can be had too
        free, _total = torch.cuda.mem_get_info(self.device)
        return free

    def close(self) -> None:
        """See `Backend`."""
        torch.cuda.set_stream(torch.cuda.default_stream(self.device))

    def enter(self) -> Any:  # noqa: ANN401 - CuPy's
        """Make device and stream the thread's current ones, if another backend of it was used last; CuPy's stream."""
        if torch.cuda.current_stream() != self._stream:
            torch.cuda.set_stream(self._stream)
        return self._launch_stream


class _Loaded:
    """A kernel as CuPy loaded it; see `LoadedKernel`."""

    def __init__(self, backend: "GpuBackend", function: Any, *, cooperative: bool) -> None:  # noqa: ANN401 - CuPy's
        self._backend = backend
        self._function = function
        self._cooperative = cooperative

    def launch(self, grid: Size, block: Size, args: Sequence[np.generic], shared_bytes: int) -> None:
        values = [by_value(arg) for arg in args]
        self._function(grid, block, values, shared_bytes, self._backend.enter(), self._cooperative)

    def allow_shared(self, num_bytes: int) -> None:
        self._backend.enter()
        attribute = self._backend.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._backend.driver.funcSetAttribute(self._function.ptr, attribute, num_bytes)

    def max_resident_blocks(self, num_threads: int, shared_bytes: int) -> int:
        self._backend.enter()
        blocks = self._backend.driver.occupancyMaxActiveBlocksPerMultiprocessor
        return int(blocks(self._function.ptr, num_threads, shared_bytes)) * self._backend.num_multiprocessors


class _Memory:
    """Somebody else's device memory as torch takes it."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def by_value(arg: np.generic) -> Any:  # noqa: ANN401 - a scalar or an array
    """An argument as CuPy passes it by value: structures as arrays of one element."""
    return np.asarray(arg) if isinstance(arg, np.void) else arg


class _Event:
    """A point of the stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # torch's

    def wait(self) -> None:
        self._event.synchronize()


class _Graph:
    """Recorded work, and how to make its stream the current one."""

    def __init__(self, graph: torch.cuda.CUDAGraph, enter: Callable[[], object]) -> None:
        self._graph = graph
        self._enter = enter

    def launch(self) -> None:
        self._enter()
        self._graph.replay()


def _import_cupy(index: int) -> Any:  # noqa: ANN401 - it has no types
    try:
        import cupy  # noqa: PLC0415 - only machines with a GPU have it
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingPart(
            f"cuda:{index}: kernels are launched by CuPy, which cannot be imported ({reason}); "
            "run `pip install 'tokenstage[cuda]'`"
        ) from error
    return cupy
