"""What a rewrite rule may ask of and do to the graph that it works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import sympy

from ..view import Constant, Node, Tensor, Variable, View, constant_value, consumers, insert_before, is_constant, producer, replace_uses, subgraphs, unlink
from .base import Refuse, require

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


class Facts(Protocol):
    """What is known of tensors before anything runs; :class:`~..shapes.Shapes` is the real one."""

    def dtype(self, tensor: Any) -> int | None:
        """``TensorProto`` data type."""

    def shape(self, tensor: Any) -> tuple[int | sympy.Expr, ...] | None:
        """Dims as ints and expressions."""

    def value(self, tensor: Any) -> Any:
        """Elements of a small integer tensor as ints and expressions, else None."""

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two dims are proven equal."""


class Context:
    """One graph while one rule family walks over it.

    Attributes:
        view: The view that the graph belongs to.
        graph: The graph.
        shapes: What is known of tensors; tensors that a rule made since are unknown to it.
        pinned: Tensors that are outputs of any graph of the view; their producers must go on making them.
        members: The nodes of the graph.
        memo: For what a family remembers from one node to the next.
    """

    def __init__(self, view: View, graph: gs.Graph, shapes: Facts, pinned: set[Tensor]) -> None:
        self.view, self.graph, self.shapes, self.pinned = view, graph, shapes, pinned
        self.memo: dict[Any, Any] = {}
        self.members: set[Node] = set(graph.nodes)

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return self.view.opset

    def builtin(self, node: Node) -> bool:
        """Whether the op is ONNX's own, not a local function of the model under the same name."""
        return (node.domain or "", node.op) not in self.view.functions

    def has(self, node: Node | None) -> bool:
        """Whether ``node`` stands in this graph (not in another one, not removed)."""
        return node in self.members

    def dtype(self, tensor: Tensor) -> int | None:
        """``TensorProto`` data type, None if unknown."""
        known = stored(tensor)
        if known is not None:
            return None if known.dtype == object else onnx.helper.np_dtype_to_tensor_dtype(known.dtype)
        return self.shapes.dtype(tensor)

    def shape(self, tensor: Tensor) -> tuple[int | sympy.Expr, ...] | None:
        """Dims as ints and expressions, None if unknown."""
        known = stored(tensor)
        return self.shapes.shape(tensor) if known is None else tuple(known.shape)

    def rank(self, tensor: Tensor) -> int | None:
        """Number of dims, None if unknown."""
        shape = self.shape(tensor)
        return None if shape is None else len(shape)

    def same_shape(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors are proven to have one shape."""
        left, right = self.shape(a), self.shape(b)
        if left is None or right is None or len(left) != len(right):
            return False
        return all(p == q or self.shapes.equal(p, q) for p, q in zip(left, right, strict=True))

    def ints(self, tensor: Tensor) -> list[int] | None:
        """Elements of an integer tensor whose values are all known, in row-major order."""
        known = constant_value(tensor) if is_constant(tensor) else self.shapes.value(tensor)
        if known is None:
            return None
        flat = list(np.asarray(known).ravel())
        return [int(v) for v in flat] if all(isinstance(v, (int, np.integer, sympy.Integer)) for v in flat) else None

    def known(self, tensor: Tensor, what: str) -> np.ndarray:
        """The float values of ``tensor``; refuses, naming it ``what``, where they may change from run to run or are no floats."""
        values = constant_value(tensor) if is_constant(tensor) else None
        if values is None:
            overridable = any(t is tensor for t in self.view.graph.inputs) and any(i.name == tensor.name for i in self.view.model.graph.initializer)
            raise Refuse(f"{what} {tensor.name!r} " + ("may be overridden by the caller" if overridable else "is not constant"))
        require(values.dtype != object and onnx.helper.np_dtype_to_tensor_dtype(values.dtype) in FLOATS, f"{what} {tensor.name!r} is {values.dtype}")
        return values

    def only_reader(self, tensor: Tensor, reader: Node) -> bool:
        """Whether ``reader`` alone uses ``tensor``, once, and both it and the producer stand in this graph."""
        return tensor not in self.pinned and len(consumers(tensor)) == 1 and self.has(reader) and self.has(producer(tensor))

    def constant(self, base: str, values: np.ndarray) -> Constant:
        """A new initializer of this graph."""
        made = self.view.constant(base, values)
        self.graph.constants.append(made)
        return made

    def freeze(self, node: Node, values: Mapping[Tensor, np.ndarray]) -> None:
        """Puts initializers of the same names in the place of ``node`` and its outputs."""
        for out, array in values.items():
            made = Constant(out.name, array)
            self.graph.constants.append(made)
            replace_uses(out, made, self.graph)
        self.remove(node)

    def redirect(self, old: Tensor, new: Tensor) -> None:
        """Makes every reader of ``old`` use ``new``, which has the same values."""
        replace_uses(old, new, self.graph)

    def insert(
        self, before: Node, op: str, inputs: Sequence[Tensor], names: Sequence[str], rule_name: str, attrs: Mapping[str, Any] | None = None
    ) -> list[Variable]:
        """Puts a new standard ``op`` in front of ``before`` and returns its outputs, one for each of ``names``, which are made fresh."""
        outputs = [self.view.variable(name) for name in names]
        node = Node(op, inputs, outputs, dict(attrs or {}), self.view.fresh(f"{outputs[0].name}/{op}"), rule=rule_name)
        insert_before(self.graph, before, [node])
        self.members.add(node)
        return outputs

    def become(self, node: Node, rule_name: str, op: str, inputs: Sequence[Tensor], attrs: Mapping[str, Any] | None = None, domain: str = "") -> None:
        """Makes ``node`` an ``op``; its name and outputs stay, and what only it needed goes."""
        node.op, node.domain, node.rule = op, domain, rule_name
        node.attrs = dict(attrs or {})
        self.rewire(node, inputs)

    def rewire(self, node: Node, inputs: Sequence[Tensor]) -> None:
        """Gives ``node`` other inputs; what only it needed goes."""
        before = list(node.inputs)
        node.inputs = list(inputs)
        self._prune(before)

    def is_dead(self, node: Node) -> bool:
        """Whether nobody uses the results of ``node``, and it does nothing beside making them."""
        return not _acts(node) and not any(t in self.pinned or t.outputs for t in node.outputs)

    def remove(self, node: Node) -> list[str]:
        """Takes ``node`` out of the graph, and what only it needed; the labels of both."""
        labels, read = [node.label], list(dict.fromkeys(_reads(node)))
        unlink(node)
        self.members.discard(node)
        return labels + self._prune(read)

    def _prune(self, tensors: Sequence[Tensor]) -> list[str]:
        labels: list[str] = []
        pending = list(tensors)
        while pending:
            node = producer(pending.pop())
            if node is not None and self.has(node) and self.is_dead(node):
                labels.append(node.label)
                pending += dict.fromkeys(_reads(node))
                unlink(node)
                self.members.discard(node)
        return labels

    def forward(self, node: Node, source: Tensor, rule_name: str) -> bool:
        """Lets readers of the first output of ``node`` use ``source``, which has the same values, and removes ``node``.

        Names of graph outputs are kept: the producer of ``source`` makes the output then. Where it cannot (``source`` is an input, a constant,
        an output too, or made in an outer graph) ``node`` becomes an Identity.

        Returns:
            False, with nothing changed, where ``node`` is an Identity that has to stay.
        """
        out, maker = node.outputs[0], producer(source)
        if out not in self.pinned:
            replace_uses(out, source, self.graph)
            self.remove(node)
            return True
        if maker is None or maker is node or not self.has(maker) or source in self.pinned or not any(t is out for t in self.graph.outputs):
            if node.standard("Identity"):
                return False
            self.become(node, rule_name, "Identity", [source])
            return True
        index = next(i for i, t in enumerate(maker.outputs) if t is source)
        maker.outputs[index] = out
        self.remove(node)
        replace_uses(source, out, self.graph)
        maker.rule = maker.rule or rule_name
        return True

    def finish(self) -> list[str]:
        """Takes removed nodes off the list of the graph and drops initializers that nothing reads; returns their names."""
        self.graph.nodes[:] = [n for n in self.graph.nodes if n in self.members]
        unused = {c for c in self.graph.constants if not c.outputs and c not in self.pinned}
        dropped = [c.name for c in self.graph.constants if c in unused]
        self.graph.constants = [c for c in self.graph.constants if c not in unused]
        return dropped


def _acts(node: Node) -> bool:
    """Whether the node may have an effect beside its outputs: it has none, or a body with such a node."""
    return not any(t.name for t in node.outputs) or any(_acts(n) for g in subgraphs(node) for n in g.nodes)


def _reads(node: Node) -> Iterator[Tensor]:
    yield from node.inputs
    for graph in subgraphs(node):
        for inner in graph.nodes:
            yield from _reads(inner)


def folded_name(tensor: Tensor) -> str:
    """A base for the name of what replaces ``tensor``."""
    return f"{tensor.name.removesuffix('_folded')}_folded"


def stored(tensor: Tensor) -> Constant | np.ndarray | None:
    """What has the shape and type of a constant tensor, without reading its values; None where it is not constant."""
    if isinstance(tensor, Constant):
        return tensor
    node = producer(tensor) if is_constant(tensor) else None
    value = node.attrs.get("value") if node is not None else None
    return value if isinstance(value, Constant) else constant_value(tensor)


def optional(node: Node, index: int) -> Tensor | None:
    """Input ``index`` of ``node``, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) and node.inputs[index].name else None


def missing() -> Variable:
    """What stands for an optional input that is left out."""
    return Variable("")
