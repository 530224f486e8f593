"""Inputs to run a model of the zoo with."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto

from .builder import Array, ZooError


def example_inputs(model: ModelProto, seed: int = 0, dims: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Random inputs for ``model``.

    Floating-point inputs are standard normal. Integer inputs that index a table (Gather from an initializer) are uniform over its rows; other
    integer inputs are masks, ones with a run of zeros at the end of each row, of a random length up to half the row.

    Args:
        model: A model of the zoo.
        seed: Selects the numbers; each input has its own stream.
        dims: Value of each symbolic dimension, by name.

    Returns:
        Input name -> array.

    Raises:
        ZooError: ``dims`` lacks a symbolic dimension.
    """
    rows = {t.name: t.dims[0] for t in model.graph.initializer if t.dims}
    indexed = {n.input[1]: rows[n.input[0]] for n in model.graph.node if n.op_type == "Gather" and n.input[0] in rows}
    result: dict[str, Array] = {}
    for value in model.graph.input:
        shape = [_size(value.name, d, dims or {}) for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        rng = np.random.default_rng((seed, zlib.crc32(value.name.encode())))
        if np.issubdtype(dtype, np.floating):
            result[value.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        elif value.name in indexed:
            result[value.name] = rng.integers(0, indexed[value.name], shape, dtype=dtype)
        else:
            kept = shape[-1] - rng.integers(0, shape[-1] // 2 + 1, [*shape[:-1], 1])
            result[value.name] = (np.arange(shape[-1]) < kept).astype(dtype)
    return result


def _size(name: str, dim: onnx.TensorShapeProto.Dimension, dims: Mapping[str, int]) -> int:
    if not dim.dim_param:
        return dim.dim_value
    if dim.dim_param not in dims:
        raise ZooError(f"input {name!r} has the symbolic dimension {dim.dim_param!r}; give its value in dims")
    return dims[dim.dim_param]
