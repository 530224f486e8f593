"""Seeded inputs that respect what the model says of them: dtypes, fixed dims, named dims shared, and tables that integers index."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto

from ..config import Bounds, OptimizeConfig
from ..errors import ModelError, UsageError
from ..graph.shapes import Dim, Shapes
from ..graph.view import Node, Tensor, View, consumers

# Sizes tried in turn for the first and for every other dim that nothing is known of, until the original model runs.
TRIAL_SIZES = ((2, 64), (1, 64), (1, 224), (2, 32), (1, 16), (1, 320), (1, 8), (1, 1), (2, 2), (3, 3))
MAX_ELEMENTS = 1 << 24  # of all inputs together; guesses above it are not tried
_INDEX_OPS = {"Gather": 1, "GatherElements": 1, "GatherND": 1}
_TRANSPARENT = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten")


def load_inputs(path: Path, view: View) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file by input name.

    Raises:
        ModelError: the file cannot be read.
        UsageError: it lacks an input, or holds one of another dtype.
    """
    try:
        with np.load(path) as data:
            arrays = {k: data[k] for k in data.files}
    except Exception as cause:
        raise ModelError(f"{path}: cannot be read as .npz ({cause})") from cause
    initializers = {t.name for t in view.model.graph.initializer}
    for info in view.model.graph.input:
        if info.name not in arrays:
            if info.name in initializers:
                continue
            raise UsageError(f"{path}: input {info.name!r} of the model is missing; it holds {', '.join(arrays) or 'nothing'}")
        if not info.type.HasField("tensor_type"):
            raise UsageError(f"{path}: input {info.name!r} of the model is no tensor, which a file cannot hold")
        expected = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if info.type.tensor_type.elem_type == TensorProto.STRING and arrays[info.name].dtype.kind == "U":
            arrays[info.name] = arrays[info.name].astype(expected)
        if arrays[info.name].dtype != expected:
            raise UsageError(f"{path}: input {info.name!r} is {arrays[info.name].dtype}, the model takes {expected}")
    return {i.name: arrays[i.name] for i in view.model.graph.input if i.name in arrays}


def trial_inputs(view: View, shapes: Shapes, config: OptimizeConfig, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Random inputs at one choice of sizes after another; nothing where an input is no plain tensor.

    Guesses that need more than :data:`MAX_ELEMENTS` are left out, unless all do: then the smallest is tried.
    """
    initializers = {t.name for t in view.model.graph.initializer}
    infos = [i for i in view.model.graph.input if i.name not in initializers]
    if not all(i.type.HasField("tensor_type") for i in infos):
        return
    tables = {t.name: index_bound(t, shapes) for t in view.graph.inputs}
    guesses = list(dict.fromkeys(_shapes(infos, first, other, config) for first, other in TRIAL_SIZES))
    for sizes in [g for g in guesses if _elements(g) <= MAX_ELEMENTS] or [min(guesses, key=_elements)]:
        rng = np.random.default_rng(seed)
        yield {i.name: random_array(rng, i.type.tensor_type.elem_type, size, tables.get(i.name)) for i, size in zip(infos, sizes, strict=True)}


def _elements(sizes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(math.prod, sizes))


def _shapes(infos: Sequence[ValueInfoProto], first: int, other: int, config: OptimizeConfig) -> tuple[tuple[int, ...], ...]:
    named: dict[str, int] = {}
    return tuple(_shape(info, first, other, named, config) for info in infos)


def _shape(info: ValueInfoProto, first: int, other: int, named: dict[str, int], config: OptimizeConfig) -> tuple[int, ...]:
    given = config.opt_shapes.get(info.name) or config.overwrite_input_shapes.get(info.name)
    sizes = []
    for axis, dim in enumerate(info.type.tensor_type.shape.dim):
        default = first if axis == 0 else other
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            sizes.append(dim.dim_value)
            continue
        low, high = _bounds(info.name, axis, dim.dim_param, config)
        size = given[axis] if given else max(default, low) if high is None else min(max(default, low), high)
        sizes.append(named.setdefault(dim.dim_param, size) if dim.dim_param else size)
    return tuple(sizes)


def _bounds(name: str, axis: int, param: str, config: OptimizeConfig) -> Bounds:
    low = config.min_shapes[name][axis] if name in config.min_shapes else 1
    high = config.max_shapes[name][axis] if name in config.max_shapes else None
    named: Mapping[str, Bounds] = config.dims
    return named.get(param, (low, high))


def index_bound(tensor: Tensor, shapes: Shapes) -> int | None:
    """Length of the shortest table that ``tensor`` indexes, through casts and reshapes; None where it indexes none."""
    found: list[int] = []
    pending, seen = [tensor], {tensor}
    while pending:
        current = pending.pop()
        for node in consumers(current):
            if node.standard(*_INDEX_OPS) and len(node.inputs) > 1 and node.inputs[_INDEX_OPS[node.op]] is current:
                table = shapes.shape(node.inputs[0])
                found += [d for d in _indexed(node, table, shapes.shape(current)) if isinstance(d, int)] if table else []
            elif node.standard(*_TRANSPARENT) and node.inputs[0] is current and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return min(found, default=None)


def _indexed(node: Node, table: Sequence[Dim], index: Sequence[Dim] | None) -> Sequence[Dim]:
    """The dims of ``table`` that ``node`` indexes."""
    if node.op != "GatherND":
        return [table[int(node.attrs.get("axis", 0))]]
    first, depth = int(node.attrs.get("batch_dims", 0)), index[-1] if index else None
    return table[first : first + depth if isinstance(depth, int) else None]


def random_array(rng: np.random.Generator, dtype: int, shape: tuple[int, ...], bound: int | None = None) -> np.ndarray:
    """Standard normal floats, integers below ``bound`` (0 and 1 without one), random booleans, short strings."""
    if dtype == TensorProto.STRING:
        return np.array([f"s{v}" for v in rng.integers(0, 9, int(np.prod(shape)))], dtype=object).reshape(shape)
    if dtype == TensorProto.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    if kind.kind in "iu":
        return rng.integers(0, max(1, bound if bound is not None else 2), shape).astype(kind)
    if kind.kind == "c":
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), kind)
    return rng.standard_normal(shape).astype(kind)
