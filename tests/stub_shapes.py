"""Shapes as onnx.shape_inference knows them, for tests of rewrites by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import sympy
from onnx import GraphProto

from tests.export_view import export_view
from tilewright.optimizer.graph.view import Constant, Tensor, View


class StubShapes:
    """Facts by tensor name; symbolic dims are sympy symbols."""

    def __init__(self, view: View) -> None:
        model = export_view(view)
        for output in model.graph.output:  # declared output shapes are never facts
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        self._types: dict[str, Any] = {}
        self._collect(inferred.graph)
        self._values: dict[str, list[int]] = {}
        for node in model.graph.node:
            shape = self._dims(node.input[0]) if node.op_type == "Shape" and not node.attribute else None
            if shape is not None and all(isinstance(d, int) for d in shape):
                self._values[node.output[0]] = [int(d) for d in shape]

    def _collect(self, graph: GraphProto) -> None:
        for info in [*graph.input, *graph.value_info, *graph.output]:
            if info.type.HasField("tensor_type"):
                self._types[info.name] = info.type.tensor_type
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    self._collect(attribute.g)

    def _dims(self, name: str) -> tuple[int | sympy.Expr, ...] | None:
        kind = self._types.get(name)
        if kind is None or not kind.HasField("shape"):
            return None
        return tuple(
            d.dim_value if d.HasField("dim_value") else sympy.Symbol(d.dim_param or f"{name}.{i}", integer=True, nonnegative=True) for i, d in enumerate(kind.shape.dim)
        )

    def dtype(self, tensor: Tensor) -> int | None:
        if isinstance(tensor, Constant):
            return int(onnx.helper.np_dtype_to_tensor_dtype(tensor.dtype))
        kind = self._types.get(tensor.name)
        return None if kind is None or not kind.elem_type else int(kind.elem_type)

    def shape(self, tensor: Tensor) -> tuple[int | sympy.Expr, ...] | None:
        return tuple(tensor.shape) if isinstance(tensor, Constant) else self._dims(tensor.name)

    def value(self, tensor: Tensor) -> Any:
        return np.array(self._values[tensor.name]) if tensor.name in self._values else None

    def equal(self, a: Any, b: Any) -> bool:
        return bool(a == b)
