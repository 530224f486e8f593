"""Whether a model is a graph at all: each fault is one sentence that names the node, the tensor or the initializer.

Only what every later stage relies on is checked, and what the onnx package says per node. A model may hold ops that nobody knows, in any
domain; its nodes may come in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo

from ..errors import ModelError
from .load import tensor_bytes


def check_model(model: ModelProto, label: str = "model", path: Path | None = None) -> None:
    """Does nothing for a valid model.

    Args:
        model: The model; external data need not be loaded.
        label: What messages call it.
        path: Where it was read from, to find external data; None where it has none.

    Raises:
        ModelError: a domain without a version, a tensor that is undefined or defined twice, a cycle, an initializer with too few values, a node that
            lacks an attribute or an input which its op requires.
    """
    versions = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = versions
    local = {(f.domain, f.name) for f in model.functions}
    try:
        _check_graph(model.graph, frozenset(), _NodeCheck(versions, local, context), path.parent if path is not None else None)
    except ModelError as fault:
        raise ModelError(f"{label}: {fault}") from fault.__cause__


def node_label(node: NodeProto) -> str:
    """What messages call a node: its name, else its op and first output."""
    return f"{node.op_type} node {node.name!r}" if node.name else f"{node.op_type} node that makes {next(iter(node.output), '')!r}"


class _NodeCheck:
    """Checks of one node by itself."""

    def __init__(self, versions: Mapping[str, int], local: Set[tuple[str, str]], context: onnx.checker.C.CheckerContext) -> None:
        self.versions, self.local, self.context = versions, local, context

    def __call__(self, node: NodeProto) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in self.local:
            return
        if domain not in self.versions:
            name = f"domain {domain!r}" if domain else "the default domain"
            raise ModelError(f"{node_label(node)}: the model imports no opset of {name}")
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions[domain], domain)
        except onnx.defs.SchemaError:
            return  # an op that nobody knows is left alone
        missing = [name for name, a in schema.attributes.items() if a.required and all(b.name != name for b in node.attribute)]
        if missing:
            raise ModelError(f"{node_label(node)}: attribute {missing[0]!r}, which {node.op_type} requires, is missing")
        if schema.deprecated or node.op_type == "Constant" or any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            return
        if node.domain:
            node = _in_domain(node, domain)
        try:
            onnx.checker.check_node(node, self.context)
        except onnx.checker.ValidationError as cause:
            raise ModelError(f"{node_label(node)}: {str(cause).strip().splitlines()[0]}") from cause


def _in_domain(node: NodeProto, domain: str) -> NodeProto:
    """``node`` with the short name of its domain, the only one that the onnx package knows."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.domain = domain
    return copy


def _check_graph(graph: GraphProto, outer: frozenset[str], check_node: _NodeCheck, folder: Path | None) -> None:
    where = f"graph {graph.name!r}" if graph.name else "the graph"
    _no_twins([i.name for i in graph.input], f"{where} has two inputs")
    _no_twins([t.name for t in graph.initializer], f"{where} has two initializers")
    given = {i.name for i in graph.input} | {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    maker: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if not name:
                continue
            if name in maker:
                raise ModelError(f"tensor {name!r} is made twice: by the {node_label(graph.node[maker[name]])} and by the {node_label(node)}")
            if name in given:
                raise ModelError(f"tensor {name!r} is made by the {node_label(node)} but is an input or initializer of {where}")
            maker[name] = index
    for tensor in graph.initializer:
        _check_initializer(tensor, folder)
    visible = outer | given | maker.keys()
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name and name not in visible:
                raise ModelError(f"{node_label(node)}: input {position} is {name!r}, which nothing defines")
        check_node(node)
        for inner in _subgraphs(node):
            _check_graph(inner, frozenset(visible), check_node, folder)
    for value in graph.output:
        if value.name and value.name not in visible:
            raise ModelError(f"output {value.name!r} of {where} is defined by nothing")
    _no_cycle(graph, maker)


def _no_twins(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"{what} called {name!r}")
        seen.add(name)


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]


def _reads(node: NodeProto) -> set[str]:
    names = set(node.input)
    for graph in _subgraphs(node):
        for inner in graph.node:
            names |= _reads(inner)
        names |= {o.name for o in graph.output}
    return names


def _no_cycle(graph: GraphProto, maker: Mapping[str, int]) -> None:
    needs = [sorted({maker[n] for n in _reads(node) if n in maker}) for node in graph.node]
    if all(n < i for i, before in enumerate(needs) for n in before):
        return
    state = [0] * len(needs)  # 1: on the path, 2: done
    for root in range(len(needs)):
        path = [root] if not state[root] else []
        while path:
            node = path[-1]
            state[node] = 1
            step = next((n for n in needs[node] if state[n] != 2), None)
            if step is None:
                state[path.pop()] = 2
            elif state[step] == 1:
                names = [node_label(graph.node[i]) for i in path[path.index(step) :]]
                raise ModelError(f"the graph has a cycle: {' reads the '.join([*names[:4], *(['...'] if len(names) > 4 else []), names[0]])}")
            else:
                path.append(step)


def _check_initializer(tensor: TensorProto, folder: Path | None) -> None:
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"initializer {tensor.name!r} has a negative dim: {list(tensor.dims)}")
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return
    held: int | None = len(tensor.raw_data) if tensor.HasField("raw_data") else None
    if tensor.data_location == TensorProto.EXTERNAL:
        held = _external_bytes(tensor, folder)
    size = tensor_bytes(tensor)
    if held is not None and size != held:
        raise ModelError(f"initializer {tensor.name!r} holds {held} bytes, its shape {list(tensor.dims)} takes {size}")


def _external_bytes(tensor: TensorProto, folder: Path | None) -> int | None:
    """Bytes that the file beside the model holds for ``tensor``; None where only the file's end says so and it is long enough."""
    info = ExternalDataInfo(tensor)
    if info.length:
        return int(info.length)
    file = folder / info.location if folder is not None else None
    left = file.stat().st_size - (info.offset or 0) if file is not None and file.is_file() else None
    return None if left is None or left >= tensor_bytes(tensor) else left
