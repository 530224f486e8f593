"""A view becomes a ``ModelProto`` again: what did not change keeps its bytes, the header is the original's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_graphsurgeon as gs
from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..graph.view import MICROSOFT, Constant, Node, View, fingerprint, subgraphs

FUNCTION_IR_VERSION = 8


def export_model(view: View, functions: Iterable[FunctionProto] = (), domains: Iterable[tuple[str, int]] = ()) -> ModelProto:
    """The model that ``view`` says.

    Names, order and types of inputs and outputs, metadata, doc strings, annotations and functions come from the original; a node, a
    sub-graph or an initializer that did not change keeps its bytes. Local ``functions`` raise the IR version to 8 where it was lower. IR 3
    lists every initializer among ``graph.input``: new ones are added there, and all leave it where the version is raised. From IR 4 on those
    leave it that the view takes for constants: nothing may override them any more.
    """
    original = view.model
    model = ModelProto()
    _copy_fields(original, model, skip=("graph",))
    functions = list(functions)
    model.functions.extend(functions)
    if functions:
        known = {i.domain for i in model.opset_import}
        for domain, version in domains:
            if domain not in known:
                model.opset_import.append(helper.make_opsetid(domain, version))
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
    if any(n.domain == MICROSOFT for n in view.nodes()) and all(i.domain != MICROSOFT for i in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    _export_graph(view.graph, model.graph)
    _list_initializers(model, {t.name for t in view.graph.inputs if isinstance(t, Constant)})
    return model


def _list_initializers(model: ModelProto, constants: set[str]) -> None:
    """``constants`` are the initializers that are inputs too, but cannot be overridden."""
    now = {t.name: t for t in model.graph.initializer}
    for index in reversed(range(len(model.graph.input))):
        name = model.graph.input[index].name
        if name in constants and (model.ir_version >= 4 or name not in now):
            del model.graph.input[index]
    if model.ir_version < 4:
        listed = {i.name for i in model.graph.input}
        model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in now.values() if t.name not in listed)


def _copy_fields(source: Message, target: Message, skip: tuple[str, ...]) -> None:
    for field, value in source.ListFields():
        if field.name in skip:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif isinstance(value, Message):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def _export_graph(graph: gs.Graph, out: GraphProto, outer: frozenset[Constant] = frozenset()) -> None:
    origin: GraphProto = graph.origin
    _copy_fields(origin, out, skip=("node", "initializer", "value_info"))
    made: set[str] = set()
    visible = outer | {*graph.constants, *constants_used(graph)}
    for node in graph.nodes:
        out.node.append(export_node(node, visible))
        made.update(t.name for t in node.outputs)
    _export_initializers(graph, out, outer)
    # NOTE: value_info of tensors that are gone would define them a second time for some readers; the rest stays as documentation.
    out.value_info.extend(v for v in origin.value_info if v.name in made)


def _export_initializers(graph: gs.Graph, out: GraphProto, outer: frozenset[Constant]) -> None:
    """What ``graph.constants`` holds, in the original's order first, and constants that its nodes read and no outer graph defines."""
    origin: GraphProto = graph.origin
    mine = {t.name: t for t in [*graph.constants, *constants_used(graph)] if t not in outer or t in graph.constants}
    overridable = {t.name for t in graph.inputs if not isinstance(t, Constant)}
    for tensor in origin.initializer:
        constant = mine.pop(tensor.name, None)
        if constant is not None:
            out.initializer.append(tensor if constant.origin is tensor else export_constant(constant))
        elif tensor.name in overridable:
            out.initializer.append(tensor)
    out.initializer.extend(export_constant(constant) for constant in mine.values())


def constants_used(graph: gs.Graph) -> Iterator[Constant]:
    """The constants that the nodes and outputs of ``graph`` read, its sub-graphs apart, each once."""
    seen: set[Constant] = set()
    for tensor in [*(t for node in graph.nodes for t in node.inputs), *graph.outputs]:
        if isinstance(tensor, Constant) and tensor.name and tensor not in seen:
            seen.add(tensor)
            yield tensor


def export_constant(constant: Constant, name: str | None = None) -> TensorProto:
    """The values of ``constant`` as an initializer called ``name``, its own name by default."""
    if constant.origin is not None:
        copy = TensorProto()
        copy.CopyFrom(constant.origin)
        copy.name = constant.name if name is None else name
        return copy
    return numpy_helper.from_array(constant.values, constant.name if name is None else name)


def export_node(node: Node, outer: frozenset[Constant] = frozenset()) -> NodeProto:
    """The node as protobuf, its original bytes where it did not change; ``outer`` are the constants that its sub-graphs see."""
    if node.origin is not None and node.unchanged and not subgraphs(node):
        return node.origin
    if node.origin is not None and node.unchanged:
        out = NodeProto()
        out.CopyFrom(node.origin)
        for attribute in out.attribute:
            if isinstance(node.attrs.get(attribute.name), gs.Graph) and graph_changed(node.attrs[attribute.name]):
                attribute.g.Clear()
                _export_graph(node.attrs[attribute.name], attribute.g, outer)
        return out
    out = NodeProto(op_type=node.op, name=node.name, domain=node.domain or "")
    out.input.extend(t.name for t in node.inputs)
    out.output.extend(t.name for t in node.outputs)
    out.attribute.extend(export_attributes(node, outer))
    if node.origin is not None:
        out.doc_string = node.origin.doc_string
        out.metadata_props.extend(node.origin.metadata_props)
    return out


def export_attributes(node: Node, outer: frozenset[Constant] = frozenset()) -> Iterator[AttributeProto]:
    """The attributes of a node as protobuf, in order; ``outer`` are the constants that its sub-graphs see."""
    for name, value in node.attrs.items():
        if isinstance(value, AttributeProto):
            yield value
        elif isinstance(value, Constant):
            yield helper.make_attribute(name, export_constant(value))
        elif isinstance(value, gs.Graph):
            attribute = AttributeProto(name=name, type=AttributeProto.GRAPH)
            _export_graph(value, attribute.g, outer)
            yield attribute
        elif isinstance(value, list) and not value:
            kinds = [a.type for a in node.origin.attribute if a.name == name] if node.origin is not None else []
            yield AttributeProto(name=name, type=kinds[0] if kinds else AttributeProto.INTS)
        else:
            yield helper.make_attribute(name, value)


def graph_changed(graph: gs.Graph) -> bool:
    """Whether anything in ``graph`` or below it differs from what was read."""
    origin: GraphProto = graph.origin
    if len(graph.nodes) != len(origin.node) or any(n.origin is not o for n, o in zip(graph.nodes, origin.node, strict=False)):
        return True
    if [t.name for t in graph.outputs] != [o.name for o in origin.output]:
        return True
    if any(isinstance(t, Constant) and t.origin is None for n in graph.nodes for t in n.inputs):
        return True
    return any(fingerprint(n) != n.origin_print or any(graph_changed(s) for s in subgraphs(n)) for n in graph.nodes)
