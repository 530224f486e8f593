"""Shape rules of ops that select, join, split or pad along axes."""

from __future__ import annotations

import numpy as np

from .. import dims
from ..symbols import Dim, add, mul, sub
from .registry import MAX_UNKNOWN, Call, CannotInfer, Fact, Shape, Values, rule, same_dim

_HUGE = 10**9  # an end at least this far off means "to the last element": no dim is longer


@rule("Gather")
def gather(call: Call) -> list[Fact]:
    """``data`` with the dim ``axis`` replaced by the dims of the indices."""
    data, indices = call.need(0), call.need(1)
    axis = call.axis(int(call.attr("axis", 0)), len(data))
    value, where = call.value(0), call.ints(1)
    taken = None
    if value is not None and where is not None and all(-value.shape[axis] <= i < value.shape[axis] for i in where):
        taken = np.take(value, np.array(where, dtype=np.int64).reshape([int(d) for d in indices]), axis=axis)
        taken = taken if isinstance(taken, np.ndarray) else _scalar(taken)
    return [Fact((*data[:axis], *indices, *data[axis + 1 :]), taken)]


def _scalar(entry: Dim) -> Values:
    result = np.empty((), dtype=object)
    result[()] = entry
    return result


@rule("GatherElements")
def gather_elements(call: Call) -> list[Fact]:
    """The shape of the indices."""
    return [Fact(call.shape(1))]


@rule("GatherND")
def gather_nd(call: Call) -> list[Fact]:
    """Dims of the indices but the last, then the dims of the data that an index tuple leaves."""
    data, indices = call.need(0), call.need(1)
    batch, depth = int(call.attr("batch_dims", 0)), indices[-1] if indices else None
    if not isinstance(depth, int):
        raise CannotInfer("the length of an index is unknown")
    return [Fact((*indices[:-1], *data[batch + depth :]))]


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(call: Call) -> list[Fact]:
    """The last dim becomes the number of indices."""
    data, indices = call.need(0), call.need(1)
    return [Fact((*(data[:-1] if len(data) > 1 else (1,)), indices[-1] if indices else 1), dtype=call.dtype(0))]


@rule("Compress")
def compress(call: Call) -> list[Fact]:
    """An unknown number of slices, or of elements where no axis is given."""
    axis = call.attr("axis")
    if axis is None:
        return [Fact(call.fresh(1))]
    data = list(call.need(0))
    data[call.axis(int(axis), len(data))] = call.engine.fresh()
    return [Fact(tuple(data))]


def _end(dim: Dim, end: Dim) -> Dim | None:
    """Where a slice forward to ``end`` stops (at most ``dim``, perhaps below 0), or None where the sign of ``end`` is open."""
    if isinstance(end, int):
        return dim if end >= _HUGE else dims.minimum(end, dim) if end >= 0 else add(dim, end)
    if dims.at_least(end, 0):
        return dims.minimum(end, dim)
    if dims.at_least(-1, end):
        return add(dim, end)
    behind = sub(dim, end)
    # NOTE: below 0 an end counts from the back: dim - 1 and dim - 2 are then negative only where the slice is empty either way.
    return end if isinstance(behind, int) and 0 <= behind <= 2 else None


def _start(dim: Dim, start: Dim) -> Dim | None:
    """Where a slice forward from ``start`` begins (perhaps beyond ``dim``), or None where the sign of ``start`` is open."""
    if isinstance(start, int) and abs(start) >= _HUGE:
        return dim if start > 0 else 0
    if dims.at_least(start, 0):
        return start
    return dims.maximum(add(dim, start), 0) if dims.at_least(-1, start) else None


def _length(dim: Dim, start: Dim, end: Dim, step: Dim) -> Dim | None:
    """Elements of ``[start:end:step]`` of a dim; None where it depends on a sign that is open."""
    if not isinstance(step, int) or step == 0:
        return None
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end, step).indices(dim)))
    if step < 0:
        whole = isinstance(start, int) and isinstance(end, int) and (start == -1 or start >= _HUGE) and end <= -_HUGE
        return dims.ceildiv(dim, -step) if whole else None
    first, last = _start(dim, start), _end(dim, end)
    return None if first is None or last is None else dims.ceildiv(dims.maximum(sub(last, first), 0), step)


@rule("Slice")
def slice_(call: Call) -> list[Fact]:
    """``data[start:end:step]`` on each of ``axes``; attributes up to opset 9, inputs since."""
    data = list(call.need(0))
    starts: list[Dim] | None
    ends: list[Dim] | None
    axes: list[int] | None
    steps: list[Dim] | None
    if call.opset < 10:
        starts, ends, axes, steps = call.attr("starts"), call.attr("ends"), call.attr("axes"), None
    else:
        starts, ends = call.entries(1), call.entries(2)
        axes, steps = (call.ints(3) if call.has(3) else None), (call.entries(4) if call.has(4) else None)
        if (call.has(3) and axes is None) or (not call.has(3) and starts is None and ends is None and call.shape(1) is None):
            return [Fact(call.fresh(len(data)))]
    counts = [len(g) for g in (axes, starts, ends) if g is not None] or [int(d) for d in (call.shape(1) or ()) if isinstance(d, int)]
    if not counts:
        return [Fact(call.fresh(len(data)))]
    places = [call.axis(int(a), len(data)) for a in (axes if axes is not None else range(counts[0]))]
    unknown_steps = call.opset >= 10 and call.has(4) and steps is None
    for i, place in enumerate(places):
        known = starts is not None and ends is not None and not unknown_steps
        length = _length(data[place], starts[i], ends[i], 1 if steps is None else steps[i]) if known and starts and ends else None
        data[place] = call.engine.fresh() if length is None else length
    return [Fact(tuple(data), _sliced(call.value(0), places, starts, ends, steps))]


def _sliced(value: Values | None, places: list[int], starts: list[Dim] | None, ends: list[Dim] | None, steps: list[Dim] | None) -> Values | None:
    if value is None or starts is None or ends is None or not all(isinstance(e, int) for e in [*starts, *ends, *(steps or [])]):
        return None
    part = [slice(None)] * value.ndim
    for i, place in enumerate(places):
        part[place] = slice(int(starts[i]), int(ends[i]), int(steps[i]) if steps else 1)
    return value[tuple(part)]


@rule("Concat")
def concat(call: Call) -> list[Fact]:
    """Dims along ``axis`` added up; the others are the same in all inputs."""
    count = len(call.node.inputs)
    shapes = [call.shape(i) for i in range(count)]
    rank = next((len(s) for s in shapes if s is not None), None)
    if rank is None or any(s is not None and len(s) != rank for s in shapes):
        raise CannotInfer("the rank of the operands is unknown")
    axis = call.axis(int(call.attr("axis", 1 if call.opset < 4 else 0)), rank)
    result: list[Dim] = []
    for i in range(rank):
        column = [s[i] for s in shapes if s is not None]
        if i == axis:
            result.append(add(*column) if len(column) == count else call.engine.fresh())
            continue
        dim = column[0]
        for other in column[1:]:
            dim = same_dim(dim, other)
        result.append(dim)
    return [Fact(tuple(result), _concatenated(call, result, axis))]


def _concatenated(call: Call, result: list[Dim], axis: int) -> Values | None:
    if len(result) != 1 or not isinstance(result[0], int):
        return None
    engine, tensors = call.engine, call.node.inputs
    known = [engine.value(t) for t in tensors]
    if all(k is None for k in known) or (any(k is None for k in known) and result[0] > 4 * MAX_UNKNOWN):
        return None
    parts = [engine.value_or_symbols(t) if k is None else k for t, k in zip(tensors, known, strict=True)]
    return None if any(p is None for p in parts) else np.concatenate([p for p in parts if p is not None], axis=axis)


@rule("Split")
def split(call: Call) -> list[Fact]:
    """Parts along ``axis``: of given sizes, or equal ones (the last may be smaller where ``num_outputs`` is given)."""
    data, count = call.need(0), len(call.node.outputs)
    axis = call.axis(int(call.attr("axis", 0)), len(data))
    dim = data[axis]
    sizes: list[Dim] | None = call.entries(1) if call.has(1) else list(call.attr("split", [])) or None
    if sizes is None:
        if call.has(1):
            sizes = list(call.fresh(count))
        elif call.attr("num_outputs") is not None:
            part = dims.ceildiv(dim, count)
            sizes = [part] * (count - 1) + [sub(dim, mul(part, count - 1))]
        else:
            sizes = [dims.floordiv(dim, count)] * count
    value, facts, start = call.value(0), [], 0
    numbers = [s for s in sizes if isinstance(s, int) and s >= 0]
    follow = value is not None and len(numbers) == len(sizes) and sum(numbers) == value.shape[axis]
    for size in sizes:
        part_of_it = None
        if follow and value is not None and isinstance(size, int):
            part_of_it = np.take(value, range(start, start + size), axis=axis)
            start += size
        facts.append(Fact((*data[:axis], size, *data[axis + 1 :]), part_of_it))
    return facts


@rule("Pad")
def pad(call: Call) -> list[Fact]:
    """Every dim plus what is added (or, negative, taken away) on both sides."""
    data = call.need(0)
    pads: list[Dim] | None = call.entries(1) if call.opset >= 11 else [int(p) for p in call.attr("pads")]
    axes = call.axes(3) if call.has(3) else list(range(len(data)))
    if axes is None or pads is None:
        return [Fact(call.fresh(len(data)))]
    if len(pads) != 2 * len(axes):
        raise CannotInfer(f"{len(pads)} pads for {len(axes)} axes")
    result = list(data)
    for i, a in enumerate(axes):
        place = call.axis(a, len(data))
        result[place] = add(result[place], pads[i], pads[i + len(axes)])
    return [Fact(tuple(result))]


@rule("OneHot")
def one_hot(call: Call) -> list[Fact]:
    """The dims of the indices with a new one of size ``depth`` at ``axis``."""
    indices, depth = call.need(0), call.entries(1)
    axis = call.axis(int(call.attr("axis", -1)), len(indices) + 1)
    result: Shape = (*indices[:axis], depth[0] if depth else call.engine.fresh(), *indices[axis:])
    return [Fact(result)]


@rule("EyeLike")
def eye_like(call: Call) -> list[Fact]:
    """The shape of the input, of another dtype on request."""
    dtype = call.attr("dtype")
    return [Fact(call.shape(0), dtype=int(dtype) if dtype is not None else call.dtype(0))]
