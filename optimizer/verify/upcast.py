"""A float16 model with all its arithmetic in float32: the reference that its rounding errors are measured against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

_TYPE_ATTRIBUTES = ("to", "dtype")


def has_half(model: ModelProto) -> bool:
    """Whether anything in the model is float16: an input, a weight, a constant, or what a Cast makes."""
    return _graph_has_half(model.graph) or any(_node_has_half(n) for f in model.functions for n in f.node)


def _graph_has_half(graph: GraphProto) -> bool:
    return (
        any(t.data_type == TensorProto.FLOAT16 for t in graph.initializer)
        or any(i.type.tensor_type.elem_type == TensorProto.FLOAT16 for i in graph.input)
        or any(_node_has_half(n) for n in graph.node)
    )


def _node_has_half(node: NodeProto) -> bool:
    return any(_is_half_type(a) or a.t.data_type == TensorProto.FLOAT16 or any(_graph_has_half(g) for g in (a.g, *a.graphs)) for a in node.attribute)


def _is_half_type(attribute: AttributeProto) -> bool:
    return attribute.name in _TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT and attribute.i == TensorProto.FLOAT16


def upcast(model: ModelProto) -> ModelProto:
    """A copy of ``model`` with float32 in place of float16 everywhere; weights keep their (exactly representable) values."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _graph(copy.graph)
    for function in copy.functions:
        _nodes(function.node)
    return copy


def upcast_inputs(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same inputs with float32 in place of float16."""
    return {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in inputs.items()}


def _graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _tensor(tensor)
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        _type(info.type)
    _nodes(graph.node)


def _type(kind: TypeProto) -> None:
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type == TensorProto.FLOAT16:
        kind.tensor_type.elem_type = TensorProto.FLOAT
    for field in ("sequence_type", "optional_type"):
        if kind.HasField(field):
            _type(getattr(kind, field).elem_type)


def _tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def _nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if _is_half_type(attribute):
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _tensor(attribute.t)
            if attribute.HasField("tp"):
                _type(attribute.tp)
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                _graph(graph)
