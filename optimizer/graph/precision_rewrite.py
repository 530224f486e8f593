"""Carries out a choice of nodes for float16: constants, types of nodes, and the Casts at the borders."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from .precision_choice import HALF, Choices
from .precision_ops import data_input
from .view import Constant, Node, Tensor, Variable, View, consumers, is_constant, producer, remove_node

_RULE = "fp16"


def rewrite(view: View, choices: Choices, keep_io_types: bool) -> int:
    """Changes ``view`` as ``choices`` say; returns the number of Casts added."""
    return _Rewrite(view, choices, keep_io_types).apply()


class _Rewrite:
    """The tensors of a view in both types: each is natively what its maker gives, and cast once where a reader wants the other."""

    def __init__(self, view: View, choices: Choices, keep_io_types: bool) -> None:
        self.view, self.choices, self.keep_io_types = view, choices, keep_io_types
        self.half = {t for node in choices.half_nodes for t in choices.data_outputs(node)}
        self.home: dict[Tensor, gs.Graph] = {t: g for g in view.graphs() for t in g.inputs}
        self.first: dict[int, list[Node]] = {}  # by id of the graph
        self.after: dict[Node, list[Node]] = {}
        self.versions: dict[Tensor, dict[bool, Tensor]] = {}  # of each tensor: float16 (True) and float32 (False)
        self.constants: dict[tuple[Tensor, bool], Constant] = {}
        self.casts = 0

    def apply(self) -> int:
        """Outputs first, because they keep their names; then every float operand of every node; then the nodes themselves."""
        if not self.keep_io_types:
            self._convert_inputs()
        for graph in self.view.graphs():
            main = graph is self.view.graph
            for tensor in list(graph.outputs):
                if self.choices.is_float(tensor) and producer(tensor) is not None and not is_constant(tensor):
                    self._fix_output(tensor, half=main and not self.keep_io_types)
        for node in list(self.choices.order):
            if node in self.choices.choice:
                self._operands(node, self.choices.choice[node] == HALF)
        for node in self.choices.half_nodes:
            self._retype(node)
        for tensor in self.half:
            self._native(tensor, True).dtype = np.dtype(np.float16)
        self._place()
        self._drop_unread_constants()
        return self.casts

    def _convert_inputs(self) -> None:
        overridable = {t.name for t in self.view.model.graph.initializer}
        for tensor in self.view.graph.inputs:
            if isinstance(tensor, Variable) and self.choices.is_float(tensor) and tensor.name not in overridable:
                self.half.add(tensor)

    def _native(self, tensor: Tensor, half: bool) -> Tensor:
        return self.versions[tensor][half] if tensor in self.versions else tensor

    def _fix_output(self, tensor: Tensor, half: bool) -> None:
        """Lets an output of a graph keep its name where its maker gives the other type: the maker's result gets a new one."""
        native = tensor in self.half
        if native == half or tensor in self.versions:
            return
        maker = producer(tensor)
        assert maker is not None
        inner = self.view.variable(f"{tensor.name}_{'fp16' if native else 'fp32'}")
        maker.outputs[next(i for i, t in enumerate(maker.outputs) if t is tensor)] = inner
        self.versions[tensor] = {native: inner, half: tensor}
        if half:
            tensor.dtype = np.dtype(np.float16)
        self._cast(inner, tensor, half, maker)

    def _cast(self, source: Tensor, result: Tensor, half: bool, maker: Node | None) -> None:
        to = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        node = Node("Cast", [source], [result], {"to": int(to)}, self.view.fresh(f"{source.name}_to_{'fp16' if half else 'fp32'}"), rule=_RULE)
        self.casts += 1
        if maker is not None:
            self.after.setdefault(maker, []).append(node)
        else:
            self.first.setdefault(id(self.home.get(source, self.view.graph)), []).append(node)

    def _version(self, tensor: Tensor, half: bool) -> Tensor:
        native = tensor in self.half
        if tensor not in self.versions:
            self.versions[tensor] = {native: tensor}
        known = self.versions[tensor]
        if half not in known:
            known[half] = self.view.variable(f"{tensor.name}_{'fp16' if half else 'fp32'}")
            self._cast(known[native], known[half], half, producer(known[native]))
        return known[half]

    def _operands(self, node: Node, half: bool) -> None:
        for i, tensor in enumerate(node.inputs):
            if not self.choices.is_float(tensor):
                continue
            wanted = half and data_input(node.op, i)
            if not is_constant(tensor):
                version = self._version(tensor, wanted)
                if version is not tensor:
                    node.inputs[i] = version
            elif wanted:
                node.inputs[i] = self._half_constant(node, tensor)

    def _half_constant(self, node: Node, tensor: Tensor) -> Constant:
        key = (tensor, node.op == "Clip")
        if key not in self.constants:
            self.constants[key] = self.view.constant(f"{tensor.name or node.name or 'value'}_fp16", self.choices.half_values(node, tensor))
        return self.constants[key]

    def _retype(self, node: Node) -> None:
        if node.op == "Cast":
            node.attrs["to"] = int(TensorProto.FLOAT16)
        elif node.op == "ConstantOfShape":
            value = node.attrs.get("value")
            number = np.zeros(1, np.float16) if value is None else self.choices.half_values(node, value)
            node.attrs["value"] = Constant("", number)

    def _place(self) -> None:
        for graph in self.view.graphs():
            nodes = [*self.first.get(id(graph), ())]
            for node in graph.nodes:
                nodes += [node, *self.after.get(node, ())]
            graph.nodes[:] = nodes

    def _drop_unread_constants(self) -> None:
        """Constants that only converted nodes read: their values would be stored twice."""
        returned = {t for g in self.view.graphs() for t in g.outputs}
        converted = {producer(t) for t, _ in self.constants}
        for graph in self.view.graphs():
            for node in [n for n in graph.nodes if n in converted and not any(consumers(t) or t in returned for t in n.outputs)]:
                remove_node(graph, node)
            replaced = {t for t, _ in self.constants if isinstance(t, Constant)} - returned
            graph.constants = [c for c in graph.constants if c not in replaced or c.outputs]
