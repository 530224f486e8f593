"""Writes a view back as a model, the plain way: what the emit stage does with care, for tests of the stages before it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from tilewright.optimizer.graph.view import Constant, Node, View


def export_view(view: View) -> ModelProto:
    """The model that ``view`` says; header, functions, inputs and outputs come from the original."""
    model = ModelProto()
    model.CopyFrom(view.model)
    model.graph.CopyFrom(_graph(view.graph, view.graph.origin))
    inputs, constants = {i.name for i in model.graph.input}, {t.name for t in view.graph.inputs if isinstance(t, Constant)}
    if model.ir_version < 4 and {t.name for t in model.graph.initializer} != constants & inputs:
        model.ir_version = 4  # older ones want every initializer among the inputs; newer ones let the caller override those that are
        names = constants | {t.name for t in model.graph.initializer}
        used = [_tensor(c) for c in view.graph.constants if c.outputs or c in view.graph.outputs]
        model.graph.ClearField("initializer")
        model.graph.initializer.extend(used)
        kept = [i for i in model.graph.input if i.name not in names]
        del model.graph.input[:]
        model.graph.input.extend(kept)
    return model


def _graph(graph: gs.Graph, origin: GraphProto) -> GraphProto:
    result = GraphProto()
    result.CopyFrom(origin)
    for field in ("node", "initializer", "sparse_initializer", "value_info"):
        result.ClearField(field)
    for made, declared in zip(graph.outputs, result.output, strict=True):
        assert made.name == declared.name, f"output {declared.name} is called {made.name} now"
    result.sparse_initializer.extend(origin.sparse_initializer)
    overridable = {t.name for t in graph.inputs if not isinstance(t, Constant)}
    result.initializer.extend(t for t in origin.initializer if t.name in overridable)
    result.initializer.extend(_tensor(c) for c in graph.constants)
    result.node.extend(_node(n) for n in graph.nodes)
    return result


def _tensor(constant: Constant) -> TensorProto:
    if constant.origin is not None:
        return constant.origin
    return onnx.numpy_helper.from_array(np.asarray(constant.values, order="C"), constant.name)


def _node(node: Node) -> NodeProto:
    if node.unchanged:
        result = NodeProto()
        result.CopyFrom(node.origin)
        for attribute in result.attribute:
            if attribute.type == AttributeProto.GRAPH:
                sub = node.attrs[attribute.name]
                attribute.g.CopyFrom(_graph(sub, sub.origin))
        return result
    result = NodeProto(op_type=node.op, name=node.name, domain=node.domain or "")
    result.input.extend(t.name for t in node.inputs)
    result.output.extend(t.name for t in node.outputs)
    originals = {a.name: a for a in node.origin.attribute} if node.origin is not None else {}
    for key, value in node.attrs.items():
        if isinstance(value, AttributeProto):
            result.attribute.append(value)
        elif isinstance(value, gs.Graph):
            result.attribute.append(onnx.helper.make_attribute(key, _graph(value, value.origin)))
        elif isinstance(value, Constant):
            result.attribute.append(onnx.helper.make_attribute(key, _tensor(value)))
        elif isinstance(value, list) and not value:
            result.attribute.append(originals[key])
        else:
            result.attribute.append(onnx.helper.make_attribute(key, value))
    return result
