"""Shape rules of ops that make shapes or rearrange a tensor by them."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from .. import dims
from ..symbols import Dim, add, is_whole, mul, product, sub
from .registry import MAX_VALUES, Call, CannotInfer, Fact, Shape, Values, array, rule


@rule("Shape")
def shape(call: Call) -> list[Fact]:
    """The dims from ``start`` to ``end``."""
    dims_ = call.shape(0)
    if dims_ is None:
        return [Fact(call.fresh(1))]
    part = dims_[slice(call.attr("start", 0), call.attr("end"))]
    return [Fact((len(part),), array(part))]


@rule("Size")
def size(call: Call) -> list[Fact]:
    """The number of elements."""
    given = call.shape(0)
    return [Fact((), None if given is None else array([product(given)], ()))]


@rule("Constant")
def constant(call: Call) -> list[Fact]:
    """The shape of the value; contents are read on demand."""
    attrs = call.node.attrs
    for name, dtype in (("value_int", TensorProto.INT64), ("value_float", TensorProto.FLOAT), ("value_string", TensorProto.STRING)):
        if name in attrs:
            return [Fact((), dtype=dtype)]
    for name, dtype in (("value_ints", TensorProto.INT64), ("value_floats", TensorProto.FLOAT)):
        if name in attrs:
            return [Fact((len(attrs[name]),), dtype=dtype)]
    value = attrs.get("value")
    return [call.engine.fact(value)] if value is not None else []


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> list[Fact]:
    """A tensor of the given shape, filled with one number (0.0 of float32 by default)."""
    filling = call.attr("value")
    dtype = TensorProto.FLOAT if filling is None else call.engine.fact(filling).dtype
    entries = call.entries(0)
    if entries is None:
        length = (call.shape(0) or (None,))[0]
        return [Fact(call.fresh(length) if isinstance(length, int) else None, dtype=dtype)]
    number = array([0]) if filling is None else call.engine.value(filling)
    count = math.prod(e for e in entries if isinstance(e, int))
    small = all(isinstance(e, int) for e in entries) and 0 <= count <= MAX_VALUES
    value = array([number.ravel()[0]] * count, [int(e) for e in entries]) if small and number is not None else None
    return [Fact(tuple(entries), value, dtype)]


def _reshaped(call: Call, source: Shape | None, entries: list[Dim]) -> Shape:
    """Dims for the entries of a Reshape: 0 copies (without allowzero), -1 is what is left.

    NOTE: an entry that is a size may be 0 at run time and would then copy. It is taken as the dim where nothing but a tensor without elements
    can come out otherwise: it divides the number of elements, equals the dim at its place, or there is none at its place.
    """
    allow_zero = bool(call.attr("allowzero", 0))
    total = product(source) if source is not None else None
    result: list[Dim | None] = []
    for i, entry in enumerate(entries):
        if isinstance(entry, int):
            copied = source[i] if source is not None and i < len(source) else call.engine.fresh()
            result.append(None if entry == -1 else copied if entry == 0 and not allow_zero else entry)
            continue
        never_negative = dims.at_least(entry, 0)
        safe = allow_zero or dims.at_least(entry, 1) or (source is not None and i >= len(source))
        safe = safe or (source is not None and (dims.equal(source[i], entry) or (total is not None and dims.divide(total, entry) is not None)))
        result.append(entry if never_negative and safe else call.engine.fresh())
    if None not in result:
        return tuple(d for d in result if d is not None)
    left = _remaining(call, source, [(i, d) for i, d in enumerate(result) if d is not None])
    return tuple(left if d is None else d for d in result)


def _remaining(call: Call, source: Shape | None, others: list[tuple[int, Dim]]) -> Dim:
    if source is None:
        return call.engine.fresh()
    rest, divisor = list(source), [d for _, d in others]
    for dim in list(divisor):
        match = next((s for s in rest if s == dim), None)
        if match is not None and dim != 0:
            rest.remove(match)
            divisor.remove(dim)
    total, by = product(rest), product(divisor)
    if by == 0:
        return call.engine.fresh()
    exact = dims.divide(total, by)
    return exact if exact is not None else dims.floordiv(total, by)


@rule("Reshape")
def reshape(call: Call) -> list[Fact]:
    """The elements in the given shape; up to opset 4 the shape is an attribute."""
    source = call.shape(0)
    entries = [int(e) for e in call.attr("shape", [])] if not call.has(1) else call.entries(1)
    if entries is None:
        length = (call.shape(1) or (None,))[0]
        return [Fact(call.fresh(length) if isinstance(length, int) else None)]
    result = _reshaped(call, source, entries)
    return [Fact(result, _rearranged(call.value(0), result))]


def _rearranged(value: Values | None, result: Shape) -> Values | None:
    sizes = [d for d in result if isinstance(d, int)]
    return value.reshape(sizes) if value is not None and len(sizes) == len(result) and math.prod(sizes) == value.size else None


@rule("Squeeze")
def squeeze(call: Call) -> list[Fact]:
    """Without the dims of size 1 at ``axes``, or without all that are 1."""
    source, axes = call.need(0), call.axes(1)
    if axes is None:
        raise CannotInfer("the axes are unknown")
    if not axes:
        if not all(isinstance(d, int) for d in source):
            raise CannotInfer("a dim that may be 1 at run time")
        axes = [i for i, d in enumerate(source) if d == 1]
    gone = {call.axis(a, len(source)) for a in axes}
    result = tuple(d for i, d in enumerate(source) if i not in gone)
    return [Fact(result, _rearranged(call.value(0), result))]


@rule("Unsqueeze")
def unsqueeze(call: Call) -> list[Fact]:
    """With dims of size 1 at ``axes`` of the result."""
    source, axes = call.need(0), call.axes(1)
    if axes is None:
        length = (call.shape(1) or (None,))[0]
        return [Fact(call.fresh(len(source) + length) if isinstance(length, int) else None)]
    rank = len(source) + len(axes)
    new = {call.axis(a, rank) for a in axes}
    dims_ = iter(source)
    result = tuple(1 if i in new else next(dims_) for i in range(rank))
    return [Fact(result, _rearranged(call.value(0), result))]


@rule("Transpose")
def transpose(call: Call) -> list[Fact]:
    """Dims in the order ``perm``, reversed by default."""
    source = call.need(0)
    order = [int(p) for p in call.attr("perm", [])] or list(reversed(range(len(source))))
    value = call.value(0) if len(source) <= 2 else None
    return [Fact(tuple(source[p] for p in order), None if value is None else value.transpose(order))]


@rule("Flatten")
def flatten(call: Call) -> list[Fact]:
    """A matrix: the dims before ``axis`` and the dims from it on."""
    source = call.need(0)
    axis = int(call.attr("axis", 1))
    axis = axis + len(source) if axis < 0 else axis
    return [Fact((product(source[:axis]), product(source[axis:])))]


@rule("Expand")
def expand(call: Call) -> list[Fact]:
    """The data broadcast to the given shape."""
    entries = call.entries(1)
    if entries is None:
        length, source = (call.shape(1) or (None,))[0], call.shape(0)
        return [Fact(call.fresh(max(length, len(source))) if isinstance(length, int) and source is not None else None)]
    result = call.broadcast(call.need(0), tuple(entries))
    value = call.value(0)
    sizes = [d for d in result if isinstance(d, int)]
    small = value is not None and len(sizes) == len(result) and math.prod(sizes) <= MAX_VALUES
    return [Fact(result, np.broadcast_to(value, sizes).copy() if small and value is not None else None)]


@rule("Tile")
def tile(call: Call) -> list[Fact]:
    """Every dim times its repeats."""
    source, repeats = call.need(0), call.entries(1)
    if repeats is None:
        return [Fact(call.fresh(len(source)))]
    value = call.value(0)
    numbers = [r for r in repeats if isinstance(r, int)]
    small = value is not None and len(numbers) == len(repeats) and value.size * math.prod(numbers) <= MAX_VALUES
    return [Fact(tuple(mul(d, r) for d, r in zip(source, repeats, strict=True)), np.tile(value, numbers) if small and value is not None else None)]


@rule("Range")
def range_(call: Call) -> list[Fact]:
    """The numbers from ``start`` to ``limit`` in steps of ``delta``."""
    given = [call.entries(i) for i in range(3)]
    if any(g is None or len(g) != 1 for g in given):
        return [Fact(call.fresh(1))]
    start, limit, delta = (g[0] for g in given if g is not None)
    if not isinstance(delta, int) or delta == 0 or not is_whole(start) or not is_whole(limit):
        return [Fact(call.fresh(1))]
    distance = sub(limit, start) if delta > 0 else sub(start, limit)
    length = dims.ceildiv(dims.maximum(distance, 0), abs(delta))
    known = isinstance(length, int) and length <= MAX_VALUES
    return [Fact((length,), array([add(start, delta * i) for i in range(length)]) if known and isinstance(length, int) else None)]
