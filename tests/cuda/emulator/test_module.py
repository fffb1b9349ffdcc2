import gc
import threading
import weakref
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cuda.emulator import (
    CudaStream,
    DeviceArray,
    EmulatorError,
    KernelError,
    RawModule,
    Settings,
    SourceError,
    ToolchainError,
)
from cuda.emulator.build import build_module, find_toolchain
from cuda.emulator.cache import cache_folder
from cuda.emulator.stream import MAX_QUEUED

SCALE = """
template <class T> __global__ void scale(T* out, const T* in, int n, T factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor;
}
extern "C" __global__ void __launch_bounds__(64) fill(float* out, float value) { out[threadIdx.x] = value; }
"""


def scale_module() -> RawModule:
    return RawModule(code=SCALE, name_expressions=("scale<float>", "scale<int>"))


@pytest.mark.parametrize("n", [0, 1, 31, 64, 65, 1000])
def test_a_template_kernel_runs_by_its_name_expression(n: int) -> None:
    host = np.arange(n, dtype=np.int32)
    source, out = DeviceArray.from_numpy(host), DeviceArray.empty(n, np.int32)
    scale_module().get_function("scale<int>")(((n + 63) // 64,), (64,), (out, source, np.int32(n), np.int32(3)))
    assert np.array_equal(out.numpy(), host * 3)


def test_an_extern_c_kernel_is_found_by_its_name() -> None:
    out = DeviceArray.empty(16, np.float32)
    scale_module().get_function("fill")((1,), (16,), (out, np.float32(2.5)))
    assert np.array_equal(out.numpy(), np.full(16, 2.5, np.float32))


def test_kernels_in_an_extern_c_block_are_found_by_their_names() -> None:
    code = """
    // extern "C" __global__ void commented(int* x) {}
    extern "C" {
    __global__ void first(int* x) { if (true) { x[0] = 1; } }
    __global__ void __launch_bounds__(32) second(int* x) { x[1] = 2; }
    }
    template <int n> __global__ void outside(int* x) {}
    """
    module = RawModule(code=code)
    x = DeviceArray.from_numpy(np.zeros(2, np.int32))
    for name in ("first", "second"):
        module.get_function(name)((1,), (1,), (x,))
    assert x.numpy().tolist() == [1, 2]
    with pytest.raises(KeyError, match=r"there are \['first', 'second'\]"):
        module.get_function("commented")


def test_an_unknown_kernel_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match="fill"):
        scale_module().get_function("missing")


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float64(2), np.int32(2), np.float16(2), True, None], ids=lambda value: type(value).__name__
)
def test_only_the_exact_width_is_taken_for_a_scalar(value: object) -> None:
    out = DeviceArray.empty(16, np.float32)
    with pytest.raises(TypeError, match=r"argument 1 is .* the parameter is float32"):
        scale_module().get_function("fill")((1,), (16,), (out, value))


def test_a_pointer_is_an_array_or_an_unsigned_address() -> None:
    out = DeviceArray.empty(16, np.float32)
    fill = scale_module().get_function("fill")
    fill((1,), (16,), (np.uint64(out.pointer), np.float32(1)))
    assert out.numpy().sum() == 16
    with pytest.raises(TypeError, match="argument 0 is int, the parameter is pointer"):
        fill((1,), (16,), (out.pointer, np.float32(1)))


def test_a_struct_is_a_numpy_record_of_its_size() -> None:
    code = """
    struct Peers { int* slab[2]; int rank; };
    extern "C" __global__ void k(Peers peers) { peers.slab[peers.rank][0] = 5; }"""
    slabs = [DeviceArray.from_numpy(np.zeros(1, np.int32)) for _ in range(2)]
    peers = np.zeros((), np.dtype([("slab", np.uint64, 2), ("rank", np.int32)], align=True))
    peers["slab"], peers["rank"] = [slab.pointer for slab in slabs], 1
    kernel = RawModule(code=code).get_function("k")
    kernel((1,), (1,), (peers[()],))
    assert [slab.numpy()[0] for slab in slabs] == [0, 5]
    with pytest.raises(TypeError, match="argument 0 is uint64, the parameter is struct192"):
        kernel((1,), (1,), (np.uint64(0),))


def test_too_few_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="takes 2 arguments, 1 were given"):
        scale_module().get_function("fill")((1,), (16,), (np.float32(1),))


@pytest.mark.parametrize(("grid", "block"), [((1,), (1025,)), ((1,), (0,)), ((1, 65536), (1,)), ((-1,), (1,))])
def test_sizes_outside_of_cudas_limits_are_refused(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    out = DeviceArray.empty(16, np.float32)
    with pytest.raises(ValueError, match="limits are"):
        scale_module().get_function("fill")(grid, block, (out, np.float32(1)))


def test_inline_assembly_is_refused_with_its_line() -> None:
    with pytest.raises(SourceError, match=r"kernel.cu:2: inline assembly belongs in ptx.cuh"):
        RawModule(code='extern "C" __global__ void k() {\n    asm volatile("bar.sync 0;");\n}')


def test_assembly_in_comments_and_strings_is_not_assembly() -> None:
    RawModule(code='// asm("x")\nextern "C" __global__ void k() { const char* s = "asm"; (void)s; }')


def test_a_compile_error_names_the_line() -> None:
    with pytest.raises(SourceError, match=r"kernel.cu:2:.*undeclared"):
        RawModule(code='extern "C" __global__ void k() {\n    undeclared = 1;\n}')


def test_a_missing_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="`no-such-compiler` was not found: install it"):
        find_toolchain()


def test_the_cache_follows_the_environment_and_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    header = tmp_path / "value.cuh"
    header.write_text("constexpr int value = 1;")
    code = '#include "value.cuh"\nextern "C" __global__ void k(int* out) { *out = value; }'
    file = str(tmp_path / "k.cu")
    first, _ = build_module(code, file, (), "fast")
    assert first.parent == cache_folder("emulator") == tmp_path / "tokenstage" / "emulator"
    written = first.stat().st_mtime_ns
    assert build_module(code, file, (), "fast")[0].stat().st_mtime_ns == written
    assert build_module(code, file, (), "check")[0] != first
    header.write_text("constexpr int value = 2;")
    assert build_module(code, file, (), "fast")[0] != first


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None], ids=["empty", "cut", "last byte"])
def test_a_damaged_object_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = 'extern "C" __global__ void k(int* out) { *out = 1; }'
    kept, _ = build_module(code, "k.cu", (), "fast")
    whole = kept.read_bytes()
    damaged = whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage
    kept.write_bytes(damaged)
    assert build_module(code, "k.cu", (), "fast")[0] == kept
    assert kept.read_bytes() != damaged
    assert len(kept.read_bytes()) == len(whole)


def test_a_cache_that_cannot_be_written_costs_a_compilation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code = 'extern "C" __global__ void k(int* out, int n) {\n    *out = n;\n    *out = 7 / n;\n}'
    kernels = [RawModule(code=code).get_function("k") for _ in range(2)]
    out = DeviceArray.from_numpy(np.zeros(1, np.int32))
    for value, kernel in enumerate(kernels, 1):
        kernel((1,), (1,), (out, np.int32(value)))
        assert out.numpy() == 7 // value
    with pytest.raises(EmulatorError, match=r"kernel\.cu:3"):
        kernels[0]((1,), (1,), (out, np.int32(0)))


def test_streams_keep_order_and_raise_at_synchronize() -> None:
    code = 'extern "C" __global__ void k(int* x, int* y) { *x = *x + 1; if (*x == 3) *y = 7 / *y; }'
    kernel = RawModule(code=code, settings=Settings()).get_function("k")
    x, y = DeviceArray.from_numpy(np.zeros(1, np.int32)), DeviceArray.from_numpy(np.zeros(1, np.int32))
    with closing(CudaStream()) as stream:
        for _ in range(2):
            kernel((1,), (1,), (x, y), stream=stream)
        stream.record().wait()
        assert x.numpy() == 2
        for _ in range(5):
            kernel((1,), (1,), (x, y), stream=stream)
        with pytest.raises(RuntimeError, match="arithmetic"):
            stream.synchronize()
        assert x.numpy() == 3


def test_the_host_waits_before_it_touches_what_a_stream_was_given() -> None:
    kernel = RawModule(code='extern "C" __global__ void k(int* x, const int* y) { *x = *y; }').get_function("k")
    x, y = (DeviceArray.from_numpy(np.ones(1, np.int32)) for _ in range(2))
    with closing(CudaStream()) as stream:
        stream.begin_capture()
        kernel((1,), (1,), (x, y), stream=stream)
        graph = stream.end_capture()
        assert x.numpy() == y.numpy() == 1
        graph.launch()
        event = stream.record()
        assert y.numpy() == 1
        with pytest.raises(EmulatorError, match="the host reads an array that submitted work may write"):
            x.numpy()
        with pytest.raises(EmulatorError, match="the host writes an array that submitted work was given"):
            y.set(np.zeros(1, np.int32))
        event.wait()
        y.set(np.zeros(1, np.int32))
        assert x.numpy() == 1


def test_an_event_is_done_when_the_stream_has_come_there_and_raises_what_failed() -> None:
    code = 'extern "C" __global__ void k(int* x) { *x = 7 / *x; }'
    kernel = RawModule(code=code).get_function("k")
    x = DeviceArray.from_numpy(np.ones(1, np.int32))
    may_go = threading.Event()
    with closing(CudaStream()) as stream:
        stream.submit(lambda _: may_go.wait())
        kernel((1,), (1,), (x,), stream=stream)
        good = stream.record()
        assert not good.is_done()
        may_go.set()
        good.wait()
        assert good.is_done()
        x.set(np.zeros(1, np.int32))
        kernel((1,), (1,), (x,), stream=stream)
        bad = stream.record()
        with pytest.raises(KernelError, match="arithmetic"):
            bad.wait()
        with pytest.raises(KernelError, match="arithmetic"):
            bad.is_done()
        assert good.is_done()
        with pytest.raises(KernelError, match="arithmetic"):
            stream.synchronize()
        stream.synchronize()  # raised once


def test_a_stream_keeps_nothing_of_work_that_is_done() -> None:
    with closing(CudaStream()) as stream:
        argument = DeviceArray.from_numpy(np.zeros(1, np.int32))
        is_alive = weakref.ref(argument)
        RawModule(code='extern "C" __global__ void k(int* x) { *x = 1; }').get_function("k")(
            (1,), (1,), (argument,), stream=stream
        )
        del argument
        for _ in range(2):
            stream.submit(lambda _: None)
            stream.record().wait()
        gc.collect()
        assert is_alive() is None


def test_who_queues_more_than_a_stream_holds_waits() -> None:
    may_go = threading.Event()
    with closing(CudaStream()) as stream:
        stream.submit(lambda _: may_go.wait())

        def fill() -> None:
            for _ in range(MAX_QUEUED + 1):
                stream.submit(lambda _: None)

        queuer = threading.Thread(target=fill)
        queuer.start()
        queuer.join(0.05)
        assert queuer.is_alive()
        may_go.set()
        queuer.join()


def test_a_graph_replays_its_launches_on_the_memory_they_were_recorded_with() -> None:
    kernel = RawModule(code='extern "C" __global__ void k(int* x, int by) { *x = *x * 2 + by; }').get_function("k")
    x = DeviceArray.from_numpy(np.zeros(1, np.int32))
    with closing(CudaStream()) as stream:
        stream.begin_capture()
        kernel((1,), (1,), (x, np.int32(1)), stream=stream)
        kernel((1,), (1,), (x, np.int32(3)), stream=stream)
        graph = stream.end_capture()
        stream.synchronize()
        assert x.numpy() == 0
        graph.launch()
        graph.launch()
        stream.synchronize()
    assert x.numpy() == 25


def test_an_array_takes_only_its_own_shape_and_dtype() -> None:
    array = DeviceArray.empty((2, 3), np.float32)
    with pytest.raises(ValueError, match="float32"):
        array.set(np.zeros((2, 3), np.float64))
