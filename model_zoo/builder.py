"""Writes ONNX graphs the way a PyTorch exporter spells them: scoped names, initializers for state, Constant nodes for literals."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto

IR_VERSION = 8
OPSET = 17

Array: TypeAlias = npt.NDArray[Any]
Dim: TypeAlias = int | str
Precision: TypeAlias = Literal["fp32", "fp16"]

_FLOATS: dict[str, tuple[Any, int]] = {"fp32": (np.float32, TensorProto.FLOAT), "fp16": (np.float16, TensorProto.FLOAT16)}
_BUFFERS = (".running_mean", ".running_var")


class ZooError(ValueError):
    """A model was asked for that the zoo cannot build: an unknown name, or a dimension that the architecture does not allow."""


class Builder:
    """One model in the making; protobuf messages are filled in place, because big weights are slow to copy.

    Attributes:
        model: The model so far.
        dtype: numpy type of every floating-point tensor.
        elem: The same as a TensorProto data type.
    """

    def __init__(self, name: str, *, precision: Precision = "fp32", seed: int = 0) -> None:
        self.dtype, self.elem = _FLOATS[precision]
        self.model = ModelProto(ir_version=IR_VERSION, producer_name="tilewright.model_zoo")
        self.model.opset_import.add(domain="", version=OPSET)
        self.graph = self.model.graph
        self.graph.name = name
        self._seed = (seed, zlib.crc32(name.encode()))
        self._scopes: list[str] = []
        self._used: dict[str, int] = {}

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes parameter names with ``name.`` and node names with ``/name`` while it is open."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def input(self, name: str, dims: Sequence[Dim], dtype: Any = None) -> str:
        """Declares a graph input; ``dtype`` defaults to the model's floating-point type."""
        elem = self.elem if dtype is None else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.graph.input.append(onnx.helper.make_tensor_value_info(name, elem, list(dims)))
        return name

    def outputs(self, values: Mapping[str, tuple[str, Sequence[Dim]]]) -> None:
        """Makes tensors outputs of the graph: ``values`` maps the public name to the tensor so far and its dims; called once, at the end."""
        rename = {old: new for new, (old, _) in values.items()}
        for node in self.graph.node:
            for names in (node.input, node.output):
                for i, old in enumerate(names):
                    if old in rename:
                        names[i] = rename[old]
        for new, (_, dims) in values.items():
            self.graph.output.append(onnx.helper.make_tensor_value_info(new, self.elem, list(dims)))

    def draw(self, name: str, shape: Sequence[int], std: float = 1.0, mean: float = 0.0) -> Array:
        """float32 normal numbers for parameter ``name`` of this scope.

        They depend on seed, model, full parameter name and shape only, neither on the order of construction nor on the precision.
        """
        rng = np.random.default_rng((*self._seed, zlib.crc32(self._path(name).encode())))
        values = rng.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        if mean:
            values += np.float32(mean)
        return values

    def state(self, name: str, values: Array) -> str:
        """Adds a parameter or buffer of this scope as an initializer in the model's floating-point type."""
        full = self._path(name)
        tensor = self.graph.initializer.add(name=full, data_type=self.elem, dims=values.shape)
        tensor.raw_data = np.asarray(values, self.dtype).tobytes()
        return full

    def const(self, values: Any, dtype: Any = None) -> str:
        """A literal, as a Constant node; ``dtype`` defaults to the model's floating-point type."""
        array = np.array(values, dtype=self.dtype if dtype is None else dtype)
        elem = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return self.op("Constant", value=TensorProto(data_type=elem, dims=array.shape, raw_data=array.tobytes()))

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 literal: shapes, axes, pads."""
        return self.const(values, np.int64)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output and returns the name of that output."""
        return self.op_n(kind, 1, *inputs, **attributes)[0]

    def op_n(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Adds a node with ``count`` outputs and returns their names."""
        name = "/" + "/".join([*self._scopes, kind])
        seen = self._used.get(name, 0)
        self._used[name] = seen + 1
        name += f"_{seen}" if seen else ""
        outputs = [f"{name}_output_{i}" for i in range(count)]
        node = self.graph.node.add(op_type=kind, name=name, input=inputs, output=outputs)
        node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        return outputs

    def _path(self, name: str) -> str:
        return ".".join([*self._scopes, name])


def parameter_count(model: ModelProto) -> int:
    """Learnable parameters of a zoo model, counted as the published numbers are: every element of every initializer but batch-norm running statistics.

    Literals (shapes, clip bounds, masks) are Constant nodes in these models, so initializers are exactly the state of the network;
    a tied weight is one initializer and counts once.
    """
    return sum(int(np.prod(t.dims, dtype=np.int64)) for t in model.graph.initializer if not t.name.endswith(_BUFFERS))
