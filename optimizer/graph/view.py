"""The graphsurgeon view of a model: nodes and tensors with their producers and consumers, for matching and rewriting.

The loaded ``ModelProto`` stays the truth and is never changed here. Every node and constant of the view remembers the protobuf
object it came from (``origin``), so that emit can write unchanged ones back byte for byte.

Graphsurgeon compares nodes and tensors by value and by name, which is slow and takes equal twins for one another; the
sub-classes here compare by identity and can be put in sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx_graphsurgeon.ir.tensor import LazyValues

from ..errors import ModelError

Tensor: TypeAlias = "Variable | Constant"

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own ops

_SCALAR_ATTRIBUTES = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i"}
_LIST_ATTRIBUTES = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints"}


class Node(gs.Node):  # type: ignore[misc]
    """A graphsurgeon node with identity comparison.

    Attributes:
        origin: The ``NodeProto`` it was read from, or None for a node that a rewrite made.
        rule: Name of the rewrite that made or changed it, or ''.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self,
        op: str,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        attrs: dict[str, Any] | None = None,
        name: str = "",
        domain: str = "",
        origin: NodeProto | None = None,
        rule: str = "",
    ) -> None:
        super().__init__(op, name, dict(attrs or {}), list(inputs), list(outputs), domain)
        self.origin = origin
        self.origin_print = fingerprint(self) if origin is not None else None
        self.rule = rule

    @property
    def unchanged(self) -> bool:
        """Whether writing ``origin`` back says what this node says (its sub-graphs apart, which are asked themselves)."""
        return self.origin is not None and fingerprint(self) == self.origin_print

    @property
    def label(self) -> str:
        """What reports call it: its name, else ``Op(first output)``."""
        return self.name or f"{self.op}({self.outputs[0].name if self.outputs else ''})"

    def standard(self, *ops: str) -> bool:
        """Whether it is an op of the default domain and, if any are given, one of ``ops``."""
        return self.domain in ("", "ai.onnx", None) and (not ops or self.op in ops)


class Variable(gs.Variable):  # type: ignore[misc]
    """A tensor that a node or the caller computes; ``shape`` and ``dtype`` stay unset, :class:`~.shapes.Shapes` holds them."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, name: str) -> None:
        super().__init__(name)


class Constant(gs.Constant):  # type: ignore[misc]
    """An initializer, or the value of a Constant node.

    Attributes:
        origin: The ``TensorProto`` it was read from, or None for one that a rewrite made.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, name: str, values: np.ndarray | Weights, origin: TensorProto | None = None) -> None:
        super().__init__(name, values)
        self.origin = origin

    @property
    def nbytes(self) -> int:
        """Size in memory, bytes."""
        return int(self._values.nbytes)


class Weights(LazyValues):  # type: ignore[misc]
    """Values of a ``TensorProto`` that are read, from the file beside the model where they are external, on first use."""

    def __init__(self, tensor: TensorProto, base_dir: Path | None) -> None:
        self.tensor = tensor
        self.base_dir = base_dir
        self.shape = tuple(tensor.dims)
        self.dtype = np.dtype(object) if tensor.data_type == TensorProto.STRING else onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def load(self) -> np.ndarray:
        """The values as an array. Raises ModelError where the external file is missing or too short."""
        try:
            return onnx.numpy_helper.to_array(self.tensor, str(self.base_dir or ""))
        except Exception as cause:
            raise ModelError(f"initializer {self.tensor.name!r}: its values cannot be read ({cause})") from cause


def fingerprint(node: gs.Node) -> tuple[Any, ...]:
    """What a node says, by value; sub-graphs count by identity."""
    attrs = tuple(
        (k, tuple(v) if isinstance(v, list) else id(v) if isinstance(v, (gs.Graph, gs.Constant, AttributeProto)) else v) for k, v in node.attrs.items()
    )
    return node.op, node.domain, node.name, tuple(t.name for t in node.inputs), tuple(t.name for t in node.outputs), attrs


def import_graph(proto: GraphProto, base_dir: Path | None = None, outer: dict[str, Tensor] | None = None, freeze_initializers: bool = True) -> gs.Graph:
    """The view of ``proto``, sub-graphs included; tensors of ``outer`` are visible inside it.

    Declared shapes and value_info are left out: they are never facts. With ``freeze_initializers`` false, initializers that are
    graph inputs too are Variables, because a caller may override them.
    """
    scope: dict[str, Tensor] = {}
    input_names = {i.name for i in proto.input}
    for tensor in proto.initializer:
        overridable = tensor.name in input_names and not freeze_initializers
        scope[tensor.name] = Variable(tensor.name) if overridable else Constant(tensor.name, Weights(tensor, base_dir), origin=tensor)
    for sparse in proto.sparse_initializer:
        scope[sparse.values.name] = Variable(sparse.values.name)
    inputs = [scope.setdefault(i.name, Variable(i.name)) for i in proto.input]

    # NOTE: all outputs first, since ONNX Runtime also takes graphs whose nodes are in no topological order.
    for node in proto.node:
        for name in filter(None, node.output):
            scope.setdefault(name, Variable(name))

    def tensor_of(name: str) -> Tensor:
        if not name:
            return Variable("")
        return scope[name] if name in scope else outer[name] if outer and name in outer else scope.setdefault(name, Variable(name))

    nodes = []
    for node in proto.node:
        ins, outs = [tensor_of(n) for n in node.input], [tensor_of(n) for n in node.output]
        visible = {**(outer or {}), **scope} if any(a.type == AttributeProto.GRAPH for a in node.attribute) else {}
        attrs = {a.name: _attribute(a, base_dir, visible) for a in node.attribute}
        nodes.append(Node(node.op_type, ins, outs, attrs, node.name, node.domain, origin=node))
    graph = gs.Graph(nodes=nodes, inputs=inputs, outputs=[tensor_of(o.name) for o in proto.output], name=proto.name)
    graph.origin = proto
    graph.constants = [t for t in scope.values() if isinstance(t, Constant)]
    return graph


def _attribute(attribute: AttributeProto, base_dir: Path | None, visible: dict[str, Tensor]) -> Any:
    if attribute.ref_attr_name:
        return attribute
    if attribute.type in _SCALAR_ATTRIBUTES:
        return getattr(attribute, _SCALAR_ATTRIBUTES[attribute.type])
    if attribute.type in _LIST_ATTRIBUTES:
        return list(getattr(attribute, _LIST_ATTRIBUTES[attribute.type]))
    if attribute.type == AttributeProto.STRING:
        try:
            return attribute.s.decode()
        except UnicodeDecodeError:
            return attribute
    if attribute.type == AttributeProto.TENSOR:
        return Constant(attribute.t.name, Weights(attribute.t, base_dir), origin=attribute.t)
    if attribute.type == AttributeProto.GRAPH:
        return import_graph(attribute.g, base_dir, visible)
    return attribute


class View:
    """The view of one model.

    Attributes:
        model: The truth; read only.
        graph: Its main graph.
        opset: Version of the default domain, 0 where the model imports none.
        base_dir: Folder that external data is relative to, or None.
        functions: Names ``(domain, name)`` of the model's local functions.
    """

    def __init__(self, model: ModelProto, base_dir: Path | None = None, freeze_initializers: bool = False) -> None:
        self.model = model
        self.base_dir = base_dir
        self.opset = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), 0)
        self.functions = {(f.domain, f.name) for f in model.functions}
        self.graph = import_graph(model.graph, base_dir, freeze_initializers=freeze_initializers or model.ir_version < 4)
        self._names = _all_names(model.graph)

    def graphs(self) -> Iterator[gs.Graph]:
        """The main graph and every sub-graph, outer ones first."""
        pending = [self.graph]
        while pending:
            graph = pending.pop(0)
            yield graph
            pending.extend(s for node in graph.nodes for s in subgraphs(node))

    def nodes(self) -> Iterator[Node]:
        """Every node of every graph."""
        for graph in self.graphs():
            yield from graph.nodes

    def fresh(self, base: str) -> str:
        """A name for a new node or tensor that nothing in the model has, made from ``base``."""
        name, count = base, 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def constant(self, base: str, values: np.ndarray) -> Constant:
        """A new initializer with a fresh name."""
        return Constant(self.fresh(base), np.asarray(values))

    def variable(self, base: str) -> Variable:
        """A new tensor with a fresh name."""
        return Variable(self.fresh(base))


def _all_names(graph: GraphProto) -> set[str]:
    names = {v.name for values in (graph.initializer, graph.input, graph.output, graph.value_info) for v in values}
    names |= {s.values.name for s in graph.sparse_initializer}
    for node in graph.node:
        names |= {node.name, *node.input, *node.output}
        for attribute in node.attribute:
            for sub in [attribute.g, *attribute.graphs]:
                names |= _all_names(sub)
    return names


def subgraphs(node: Node) -> list[gs.Graph]:
    """The sub-graphs of a control-flow node."""
    return [a for a in node.attrs.values() if isinstance(a, gs.Graph)]


def producer(tensor: Tensor) -> Node | None:
    """The node that computes ``tensor``, or None."""
    return tensor.inputs[0] if tensor.inputs else None


def consumers(tensor: Tensor) -> list[Node]:
    """The nodes that read ``tensor``, inside sub-graphs too; a node that reads it twice is there twice."""
    return list(tensor.outputs)


def is_output(graph: gs.Graph, tensor: Tensor) -> bool:
    """Whether ``tensor`` is an output of ``graph``."""
    return any(t is tensor for t in graph.outputs)


def single_use(graph: gs.Graph, tensor: Tensor) -> bool:
    """Whether exactly one input of one node of ``graph`` reads ``tensor`` and it is not an output of ``graph``."""
    readers = consumers(tensor)
    return len(readers) == 1 and not is_output(graph, tensor) and any(n is readers[0] for n in graph.nodes)


def constant_value(tensor: Tensor) -> np.ndarray | None:
    """The values of a tensor that is known: an initializer or the output of a Constant node with a plain value; else None."""
    values: np.ndarray | None
    if isinstance(tensor, Constant):
        values = tensor.values
        return values
    node = producer(tensor)
    if node is None or not node.standard("Constant"):
        return None
    for name, kind in (("value_float", np.float32), ("value_int", np.int64), ("value_floats", np.float32), ("value_ints", np.int64)):
        if name in node.attrs:
            return np.array(node.attrs[name], dtype=kind)
    value = node.attrs.get("value")
    values = value.values if isinstance(value, Constant) else None
    return values


def constant_bytes(tensor: Tensor) -> int:
    """Size of a known tensor in bytes without reading its values; 0 where it is not known."""
    if isinstance(tensor, Constant):
        return tensor.nbytes
    node = producer(tensor)
    value = node.attrs.get("value") if node is not None and node.standard("Constant") else None
    return value.nbytes if isinstance(value, Constant) else 0


def is_constant(tensor: Tensor) -> bool:
    """Whether :func:`constant_value` knows ``tensor``; values are not read."""
    if isinstance(tensor, Constant):
        return True
    node = producer(tensor)
    return (
        node is not None
        and node.standard("Constant")
        and any(k.startswith("value") and "string" not in k for k in node.attrs)
        and "sparse_value" not in node.attrs
    )


def replace_uses(tensor: Tensor, new: Tensor, graph: gs.Graph, keep: Iterable[Node] = ()) -> None:
    """Makes every reader of ``tensor`` (except ``keep``) and every output of ``graph`` that is ``tensor`` use ``new``.

    NOTE: an output of a graph keeps its name only if ``new`` is renamed; :func:`replace_output` does that.
    """
    skip = set(keep)
    for node in dict.fromkeys(consumers(tensor)):
        if node in skip:
            continue
        for i, t in enumerate(node.inputs):
            if t is tensor:
                node.inputs[i] = new
    if is_output(graph, tensor):
        graph.outputs = [new if t is tensor else t for t in graph.outputs]


def unlink(node: Node) -> None:
    """Takes ``node`` and the nodes of its sub-graphs off the tensors that they read and make."""
    for graph in subgraphs(node):
        for inner in graph.nodes:
            unlink(inner)
    node.inputs.clear()
    node.outputs.clear()


def remove_node(graph: gs.Graph, node: Node) -> None:
    """Takes ``node`` out of ``graph`` and unlinks its tensors."""
    unlink(node)
    graph.nodes[:] = [n for n in graph.nodes if n is not node]


def insert_before(graph: gs.Graph, anchor: Node, new: Iterable[Node]) -> None:
    """Puts ``new`` nodes in front of ``anchor``."""
    index = next(i for i, n in enumerate(graph.nodes) if n is anchor)
    graph.nodes[index:index] = list(new)


def bypass(graph: gs.Graph, node: Node, source: Tensor) -> bool:
    """Removes ``node``, whose first output equals ``source``, and lets readers use ``source``; names of graph outputs are kept.

    Returns:
        False, with nothing changed, where that cannot be done: the output is a graph output and ``source`` is an input, a constant,
        an output too, or made in another graph.
    """
    out = node.outputs[0]
    if not is_output(graph, out):
        replace_uses(out, source, graph)
        remove_node(graph, node)
        return True
    maker = producer(source)
    if maker is None or maker is node or is_output(graph, source) or not any(n is maker for n in graph.nodes):
        return False
    remove_node(graph, node)
    index = next(i for i, t in enumerate(maker.outputs) if t is source)
    replace_uses(source, out, graph)
    maker.outputs[index] = out
    return True
