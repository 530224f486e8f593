"""Nodes of the view as protobuf again, for the onnx package's own functions."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from .view import Constant, Node, Weights


def tensor_proto(constant: Constant) -> TensorProto:
    """The constant as a ``TensorProto``; external data stay external."""
    values = constant._values
    return values.tensor if isinstance(values, Weights) else numpy_helper.from_array(values, constant.name)


def attribute_proto(name: str, value: Any) -> AttributeProto | None:
    """One attribute, or None where the view holds something that cannot be written without its graph (a sub-graph, an empty list)."""
    if isinstance(value, AttributeProto):
        result = AttributeProto()
        result.CopyFrom(value)
        result.name = name
        return result
    if isinstance(value, gs.Graph) or (isinstance(value, list) and not value):
        return None
    return helper.make_attribute(name, tensor_proto(value) if isinstance(value, Constant) else value)


def attribute_protos(node: Node) -> list[AttributeProto]:
    """The attributes of ``node`` without sub-graphs."""
    if node.unchanged and node.origin is not None:
        return [a for a in node.origin.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    return [p for p in (attribute_proto(k, v) for k, v in node.attrs.items()) if p is not None]


def function_body(function: FunctionProto, node: Node) -> GraphProto:
    """The body of a local function as a graph, references to its attributes replaced by those of the calling ``node``."""
    given = {a.name: a for a in function.attribute_proto} | {a.name: a for a in attribute_protos(node)}
    graph = GraphProto(name=function.name)
    graph.node.extend(function.node)
    for body_node in graph.node:
        _bind(body_node, given)
    graph.input.extend(helper.make_empty_tensor_value_info(name) for name in function.input)
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in function.output)
    return graph


def _bind(node: NodeProto, given: dict[str, AttributeProto]) -> None:
    bound = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                value = AttributeProto()
                value.CopyFrom(given[attribute.ref_attr_name])
                value.name = attribute.name
                bound.append(value)
            continue
        for inner in attribute.g.node:
            _bind(inner, given)
        bound.append(attribute)
    del node.attribute[:]
    node.attribute.extend(bound)
