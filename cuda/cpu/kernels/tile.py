# ruff: noqa: ANN401, PLR0913, PLR0917 - values, types and builders are llvmlite's, which has no types
"""The inner loop of every matrix product on the CPU, as LLVM vectors: a tile of rows times a panel of 32 columns.

A weight [N, K] is kept as panels: panel p holds columns 32p … 32p + 31 of the output, k by k. For each k a tile reads
the panel's 32 weights as two vectors, makes float32 of them in registers, and adds x[row, k] times them to two
accumulators a row. So an output is the same chain of fused multiply-adds over k = 0 … K - 1 whatever tile its row
falls into: results do not depend on the batch. Formats of a panel, for each k (and for each group of 32 k: `scales`):

    kind      panel                           scales of a group
    FLOAT32   32 x float32                    none
    BFLOAT16  32 x bfloat16                   none
    INT8      32 x int8                       32 x float16 d                        w = d q
    INT4      16 bytes, columns c | c + 16    32 x float16 d, 32 x float16 m        w = d q + m

Loop bodies are generated, because a compiler keeps accumulators in registers only when they are no array.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from cuda.cpu.kernels.jit import instruction
from cuda.cpu.kernels.memory import call_llvm, emit_prefetch

FLOAT32, BFLOAT16, INT8, INT4 = 0, 1, 2, 3
PANEL = 32
"""Columns of a panel."""
GROUP = 32
"""Values along k that share a scale."""

_LANES = 16
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32 = ir.HalfType(), ir.FloatType()
_VECTOR = ir.VectorType(_F32, _LANES)
_STEP_BYTES = {FLOAT32: 128, BFLOAT16: 64, INT8: 32, INT4: 16}
_GROUP_BYTES = {INT8: 64, INT4: 128}
_UNROLL = 4
_AHEAD = 4096  # bytes

Builder = Any
Value = Any


def make_tile(kind: int, rows: int) -> Callable[..., None]:
    """`tile(x, ldx, w, ldw, scales, k, out, ldo, add)`: out[rows, 32] = (out if add) + x[rows, k] @ panel.

    Addresses and strides in bytes; `ldw` is used by FLOAT32 only. K is a multiple of 32 for INT8 and INT4.
    """

    @instruction
    def tile(_c: Any, _x: Any, _ldx: Any, _w: Any, _ldw: Any, _s: Any, _k: Any, _o: Any, _ldo: Any, _a: Any) -> Any:
        def generate(context: Any, builder: Builder, _signature: Any, args: Any) -> Any:
            x, ldx, w, ldw, scales, k, out, ldo, add = args
            sources = [builder.add(x, builder.mul(_int(row), ldx)) for row in range(rows)]
            targets = [
                _add(builder, builder.add(out, builder.mul(_int(row), ldo)), 64 * half)
                for row in range(rows)
                for half in (0, 1)
            ]
            keep = _splat(builder, builder.icmp_signed("!=", add, _int(0)))
            zero = ir.Constant(_VECTOR, [0.0] * _LANES)
            start = [builder.select(keep, _load(builder, target, _VECTOR, 4), zero) for target in targets]

            def body(at: Value, sums: list[Value], group: list[Value]) -> list[Value]:
                source = builder.add(w, builder.mul(at, ldw))
                _prefetch(builder, source, _STEP_BYTES[kind])
                weights = _weights(builder, kind, source, group)
                result = []
                for row in range(rows):
                    value = _splat(
                        builder, _load(builder, builder.add(sources[row], builder.mul(at, _int(4))), _F32, 4)
                    )
                    result += [_fma(builder, value, weights[half], sums[2 * row + half]) for half in (0, 1)]
                return result

            sums = _over_k(builder, kind, k, scales, start, body)
            for target, value in zip(targets, sums, strict=True):
                builder.store(value, _at(builder, target, _VECTOR), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return tile


def make_transpose(kind: int) -> Callable[..., None]:
    """`transpose(rows, offset, out, ldo)`: 16 values, `offset` bytes after each of 16 addresses, as columns of out."""

    @instruction
    def transpose(_c: Any, _rows: Any, _offset: Any, _out: Any, _ldo: Any) -> Any:
        def generate(context: Any, builder: Builder, _signature: Any, args: Any) -> Any:
            rows, offset, out, ldo = args
            lines = []
            for row in range(_LANES):
                source = builder.add(_load(builder, _add(builder, rows, 8 * row), _I64, 8), offset)
                lines.append(_vector(builder, kind, source))
            for bit in (1, 2, 4, 8):  # swap the two off-diagonal blocks, of one row, two, four, eight
                for low in range(_LANES):
                    if not low & bit:
                        first, second = lines[low], lines[low | bit]
                        lines[low] = _shuffle(
                            builder, first, second, [i if not i & bit else 16 + i - bit for i in range(16)]
                        )
                        lines[low | bit] = _shuffle(
                            builder, first, second, [i + bit if not i & bit else 16 + i for i in range(16)]
                        )
            for row, line in enumerate(lines):
                builder.store(line, _at(builder, builder.add(out, builder.mul(_int(row), ldo)), _VECTOR), align=64)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return transpose


def make_fold(vectors: int, *, largest: bool) -> Callable[[int], float]:
    """`fold(at)`: the largest, or the sum, of 16 * `vectors` float32 at an address; always in the same order."""

    @instruction
    def fold(_c: Any, _at: Any) -> Any:
        def generate(_context: Any, builder: Builder, _signature: Any, args: Any) -> Any:
            def combine(first: Value, second: Value) -> Value:
                if largest:
                    return builder.select(builder.fcmp_ordered(">", first, second), first, second)
                return builder.fadd(first, second)

            total = _load(builder, args[0], _VECTOR, 4)
            for index in range(1, vectors):
                total = combine(total, _load(builder, _add(builder, args[0], 64 * index), _VECTOR, 4))
            for step in (8, 4, 2, 1):
                total = combine(total, _shuffle(builder, total, total, [(i + step) % _LANES for i in range(_LANES)]))
            return builder.extract_element(total, _I32(0))

        return types.float32(types.int64), generate

    return fold


def _over_k(builder: Builder, kind: int, k: Value, scales: Value, start: list[Value], body: Any) -> list[Value]:
    """Thread `start` through body(k, sums, group scales) for every k; quantised kinds group by group."""
    if kind not in _GROUP_BYTES:
        return _loop(builder, _int(0), k, 1, start, lambda at, sums: body(at, sums, []))

    def group_body(at: Value, sums: list[Value]) -> list[Value]:
        base = builder.add(scales, builder.mul(at, _int(_GROUP_BYTES[kind] // GROUP)))
        group = [
            builder.fpext(_load(builder, _add(builder, base, 32 * i), ir.VectorType(_F16, _LANES), 32), _VECTOR)
            for i in range(_GROUP_BYTES[kind] // 32)
        ]

        def steps(inner: Value, values: list[Value]) -> list[Value]:
            for step in range(_UNROLL):
                values = body(_add(builder, inner, step), values, group)
            return values

        return _loop(builder, at, _add(builder, at, GROUP), _UNROLL, sums, steps)

    return _loop(builder, _int(0), k, GROUP, start, group_body)


def _loop(builder: Builder, first: Value, end: Value, step: int, start: list[Value], body: Any) -> list[Value]:
    """`for at in range(first, end, step): values = body(at, values)`, at least once."""
    before = builder.block
    inside = builder.append_basic_block("k.loop")
    after = builder.append_basic_block("k.done")
    builder.branch(inside)
    builder.position_at_end(inside)
    at = builder.phi(_I64)
    at.add_incoming(first, before)
    values = [builder.phi(value.type) for value in start]
    for phi, value in zip(values, start, strict=True):
        phi.add_incoming(value, before)
    results = body(at, values)
    following = _add(builder, at, step)
    at.add_incoming(following, builder.block)
    for phi, value in zip(values, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), inside, after)
    builder.position_at_end(after)
    return list(results)


def _weights(builder: Builder, kind: int, at: Value, group: list[Value]) -> list[Value]:
    """The 32 weights of one k as two float32 vectors."""
    if kind == FLOAT32:
        return [_vector(builder, kind, at), _vector(builder, kind, _add(builder, at, 64))]
    if kind == BFLOAT16:
        return [_vector(builder, kind, at), _vector(builder, kind, _add(builder, at, 32))]
    wide = ir.VectorType(_I32, _LANES)
    if kind == INT8:
        quants = [
            builder.sext(_load(builder, _add(builder, at, 16 * half), ir.VectorType(_I8, _LANES), 16), wide)
            for half in (0, 1)
        ]
        return [builder.fmul(builder.sitofp(quants[half], _VECTOR), group[half]) for half in (0, 1)]
    packed = builder.zext(_load(builder, at, ir.VectorType(_I8, _LANES), 16), wide)
    quants = [
        builder.and_(packed, ir.Constant(wide, [15] * _LANES)),
        builder.lshr(packed, ir.Constant(wide, [4] * _LANES)),
    ]
    return [_fma(builder, builder.sitofp(quants[half], _VECTOR), group[half], group[2 + half]) for half in (0, 1)]


def _prefetch(builder: Builder, at: Value, count: int) -> None:
    """Ask for what comes long after `count` bytes at an address: with many rows the core's own guess is too late."""
    for line in range(0, count, 64):
        emit_prefetch(builder, _add(builder, at, _AHEAD + line))


def _vector(builder: Builder, kind: int, at: Value) -> Value:
    """16 float32 out of 16 float32 or bfloat16."""
    if kind == FLOAT32:
        return _load(builder, at, _VECTOR, 4)
    bits = builder.zext(_load(builder, at, ir.VectorType(_I16, _LANES), 2), ir.VectorType(_I32, _LANES))
    return builder.bitcast(builder.shl(bits, ir.Constant(bits.type, [16] * _LANES)), _VECTOR)


def _int(value: int) -> Value:
    return ir.Constant(_I64, value)


def _add(builder: Builder, value: Value, offset: int) -> Value:
    return builder.add(value, _int(offset))


def _at(builder: Builder, at: Value, of: Any) -> Value:
    return builder.inttoptr(at, of.as_pointer())


def _load(builder: Builder, at: Value, of: Any, align: int) -> Value:
    return builder.load(_at(builder, at, of), align=align)


def _shuffle(builder: Builder, first: Value, second: Value, lanes: list[int]) -> Value:
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_I32, _LANES), lanes))


def _splat(builder: Builder, value: Value) -> Value:
    undefined = ir.Constant(ir.VectorType(value.type, _LANES), ir.Undefined)
    return _shuffle(builder, builder.insert_element(undefined, value, _I32(0)), undefined, [0] * _LANES)


def _fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    return call_llvm(builder, "llvm.fma.v16f32", _VECTOR, [a, b, c])
