"""Which nodes of a view change from float32 to float16; :mod:`.precision` says on what grounds."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ..records import Refusal
from . import precision_ops as ops
from .shapes import Shapes
from .symbols import mul
from .view import Constant, Node, Tensor, View, Weights, constant_value, consumers, is_constant, producer, subgraphs

LARGEST = 65504.0  # of float16
SMALLEST = 6e-8  # about the smallest subnormal of float16: a tensor of nothing larger would become 0

HALF, FLOAT, FREE = "half", "float", "free"
_EXCEEDS = "a constant exceeds the float16 range"
_MAY_EXCEED = "an operand may exceed the float16 range"
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_OTHER_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.STRING)


class Choices:
    """Which nodes change, decided in one walk forward (what follows a converted node) and one back (what only feeds converted nodes)."""

    def __init__(self, view: View, shapes: Shapes, also: Collection[str]) -> None:
        self.view, self.shapes, self.also = view, shapes, frozenset(also)
        self.order = list(_flattened(view.graph))
        self.choice: dict[Node, str] = {}
        self._halves: dict[tuple[Tensor, bool], np.ndarray] = {}
        self._reasons: dict[str, list[str]] = {}
        self._large: set[Tensor] = set()  # tensors that may exceed the range of float16
        self._ranges: dict[Tensor, str] = {}
        self._fixed: set[Tensor] = set()  # returned by a graph that does not make them
        for graph in view.graphs():
            made = {t for node in graph.nodes for t in node.outputs}
            self._fixed.update(t for t in graph.outputs if t not in made)

    @property
    def half_nodes(self) -> list[Node]:
        """The nodes that change, in order."""
        return [n for n in self.order if self.choice.get(n) == HALF]

    def refused(self) -> tuple[Refusal, ...]:
        """Why nodes did not change, one record a reason."""
        return tuple(Refusal("fp16", reason, tuple(nodes)) for reason, nodes in self._reasons.items())

    def is_float(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` holds float32 in the original."""
        return bool(tensor.name) and self.shapes.dtype(tensor) == TensorProto.FLOAT

    def data_inputs(self, node: Node) -> list[Tensor]:
        """Float32 inputs that change with the node."""
        return [t for i, t in enumerate(node.inputs) if self.is_float(t) and ops.data_input(node.op, i)]

    def data_outputs(self, node: Node) -> list[Tensor]:
        """Float32 outputs that change with the node."""
        return [t for i, t in enumerate(node.outputs) if self.is_float(t) and ops.data_output(node.op, i)]

    def reads_any(self, node: Node) -> bool:
        """Whether ``node`` takes its float input in whatever type it has."""
        if not node.standard(*ops.READERS) or any(self.is_float(t) for t in node.outputs):
            return False
        return node.op in ("Shape", "Size", "Cast") or ops.takes_half(node.op, self.view.opset)

    def choose(self) -> None:
        """Fills :attr:`choice`."""
        for node in self.order:
            if any(self.is_float(t) for t in [*node.inputs, *node.outputs]) and not node.standard("Constant") and not self.reads_any(node):
                self.choice[node] = self._forward(node)
        for node in reversed(self.order):
            if self.choice.get(node) == FREE:
                wanted = any(self.choice.get(r) == HALF and t in self.data_inputs(r) for t in self.data_outputs(node) for r in consumers(t))
                self.choice[node] = HALF if wanted else FLOAT

    def _forward(self, node: Node) -> str:
        if subgraphs(node):
            return FLOAT
        reason = self._obstacle(node)
        if reason:
            self._reasons.setdefault(reason, []).append(node.label)
            return FLOAT
        if ("" if node.standard() else node.domain, node.op) in ops.HEAVY:
            return HALF
        states = {self._state(t) for t in self.data_inputs(node) if not is_constant(t)}
        return HALF if HALF in states else FLOAT if FLOAT in states else FREE

    def _state(self, tensor: Tensor) -> str:
        maker = producer(tensor)
        return FREE if maker is None else self.choice.get(maker, FLOAT)

    def _obstacle(self, node: Node) -> str:
        """Why ``node`` stays float32, or ''."""
        domain = "" if node.standard() else node.domain
        known = node.op in self.also and (domain, node.op) in ops.LIGHT if not domain else False
        if (domain, node.op) in self.view.functions or not (known or ops.runs_in_half(domain, node.op, self.view.opset)):
            return f"{node.op} is not run in float16"
        if any(t.name and self.shapes.dtype(t) is None for t in [*node.inputs, *node.outputs]):
            return "an operand's type is unknown"
        if node.op == "BatchNormalization" and sum(bool(t.name) for t in node.outputs) > 1:
            return "BatchNormalization in training mode"
        if any(t in self._fixed for t in node.outputs):
            return "a sub-graph returns it from outside"
        if any(self._maker_is(t, "DequantizeLinear") for t in node.inputs) or any(r.op in _QUANTIZERS for t in node.outputs for r in consumers(t)):
            return "part of a quantized pattern"
        if node.op == "Cast" and self.shapes.dtype(node.inputs[0]) in _OTHER_FLOATS:
            return "Cast from another float type"
        return self._range_obstacle(node)

    @staticmethod
    def _maker_is(tensor: Tensor, op: str) -> bool:
        maker = producer(tensor)
        return maker is not None and maker.op == op

    def _range_obstacle(self, node: Node) -> str:
        """A constant, or an operand made of one, that float16 does not hold; marks results that may then be as large."""
        reason = ""
        for tensor in self.data_inputs(node):
            if is_constant(tensor):
                reason = reason or self._constant_range(node, tensor)
            elif tensor in self._large or self._contents_large(tensor):
                reason = reason or _MAY_EXCEED
        attribute = node.attrs.get("value")
        if node.op == "Pad" and isinstance(attribute, float) and LARGEST < abs(attribute) < float("inf"):
            reason = reason or _EXCEEDS
        if node.op == "ConstantOfShape" and isinstance(attribute, Constant):
            reason = reason or self._constant_range(node, attribute)
        if node.op == "Mul" and node.inputs[0] is node.inputs[1]:
            reason = reason or "a square may exceed the float16 range"
        results = self.data_outputs(node)
        if any(self._contents_large(t) for t in results):
            reason = reason or _MAY_EXCEED
        heavy = ("" if node.standard() else node.domain, node.op) in ops.HEAVY
        divisor = node.op == "Div" and is_constant(node.inputs[1])
        if reason in (_EXCEEDS, _MAY_EXCEED) and not heavy and not divisor and node.op not in ops.BOUNDED:
            self._large.update(results)
        return reason

    def _contents_large(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` holds sizes, followed by shape inference, that may be beyond the range."""
        value = None if is_constant(tensor) else self.shapes.value(tensor)
        limit = int(LARGEST)
        highs = [h for v in value.flat for h in (self.shapes.bounds(v)[1], self.shapes.bounds(mul(-1, v))[1])] if value is not None else []
        return any(h is None or h > limit for h in highs)

    def half_values(self, node: Node, tensor: Tensor) -> np.ndarray:
        """A constant operand of ``node`` in float16; bounds of Clip saturate."""
        key = (tensor, node.op == "Clip")
        if key not in self._halves:
            values = _read(tensor)
            self._halves[key] = (np.clip(values, -LARGEST, LARGEST) if key[1] else values).astype(np.float16)
        return self._halves[key]

    def _constant_range(self, node: Node, tensor: Tensor) -> str:
        """Why a constant operand cannot be float16, or ''. Infinities can."""
        if node.op == "Clip":
            return ""
        if tensor not in self._ranges:
            values = np.abs(_read(tensor))
            largest = float(np.max(values, initial=0.0, where=np.isfinite(values)))
            self._ranges[tensor] = _EXCEEDS if largest > LARGEST else ""
            if 0 < largest < SMALLEST:
                self._ranges[tensor] = "a constant vanishes in float16"
        return self._ranges[tensor]


def _flattened(graph: gs.Graph) -> Iterator[Node]:
    """Every node, those of sub-graphs before the node that holds them."""
    for node in graph.nodes:
        for sub in subgraphs(node):
            yield from _flattened(sub)
        yield node


def _read(tensor: Tensor) -> np.ndarray:
    """The values of a constant; the constant itself keeps them unread."""
    values = tensor._values if isinstance(tensor, Constant) else None
    loaded = values.load() if isinstance(values, Weights) else constant_value(tensor)
    return np.asarray(loaded)
