"""Lowered regions become custom nodes in the view, each a call of a local function that holds its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto

from ..errors import TilewrightError
from ..graph.toposort import toposort
from ..graph.view import Constant, Node, Variable, View, insert_before, remove_node
from ..jit.build import Image
from ..launch import LaunchPlan
from ..lower.lowered import NHWC, LoweredRegion
from .export import export_node
from .fallback import body_key, function_body
from .standalone import RegionModels

DOMAIN = "tilewright"
DOMAIN_VERSION = 1
CONV_KIND, MATMUL_KIND = "FusedConvRegion", "PolyMatMul"
BODIES = {CONV_KIND: 1024, MATMUL_KIND: 256}  # names that the library registers for each kind and target class


class TooManyBodies(TilewrightError):
    """The model needs more distinct function bodies of one kind than the library has names for; ``left_over`` regions were given none."""

    def __init__(self, kind: str, left_over: Sequence[LoweredRegion]) -> None:
        super().__init__(f"more than {BODIES[kind]} distinct {kind} bodies in one model")
        self.left_over = tuple(left_over)


@dataclass(frozen=True, eq=False)
class EmittedNode:
    """One custom node.

    Attributes:
        node: It in the view, and its plan for each target suffix.
        op: Its op name, which is also its function's.
        first_of_body: Whether it is the first node with this body.
        models: The same region as two models of their own, for verification.
        call, function: The node with every image that it needs, and its body.
    """

    lowered: LoweredRegion
    node: Node
    plans: Mapping[str, LaunchPlan]
    op: str
    first_of_body: bool
    models: RegionModels
    call: NodeProto
    function: FunctionProto

    def standalone(self) -> ModelProto:
        """The node by itself as a model that takes and gives what :meth:`RegionModels.reference` does."""
        return self.models.standalone(self.call, self.function)


@dataclass(frozen=True, eq=False)
class Emission:
    """What emit made: the nodes, which are in the view already, the functions that the model needs, and by node the op that runs it in the file."""

    nodes: tuple[EmittedNode, ...]
    functions: tuple[FunctionProto, ...]
    ops: tuple[str, ...]


def kind_of(lowered: LoweredRegion) -> str:
    """The kind of its op, which begins the op's name."""
    return MATMUL_KIND if lowered.region.axis == -1 else CONV_KIND


def free_names(view: View, op_suffix: str) -> dict[str, list[str]]:
    """Op names of each kind that no function of the model has."""
    taken = {f.name for f in view.model.functions if f.domain == DOMAIN}
    return {kind: [name for name in (f"{kind}_{op_suffix}_{n}" for n in range(count)) if name not in taken] for kind, count in BODIES.items()}


def emit_nodes(view: View, lowered: Sequence[LoweredRegion], images: Mapping[str, Mapping[str, Image]], op_suffix: str) -> Emission:
    """Replaces every region of ``lowered`` in ``view`` by its custom node.

    Args:
        images: By target suffix and spec text, the compiled image.
        op_suffix: Target class in the op names.

    Raises:
        TooManyBodies: more distinct bodies of a kind than ``BODIES`` says.
    """
    functions: dict[bytes, FunctionProto] = {}
    nhwc: dict[Variable, Variable] = {}
    packed: dict[tuple[object, ...], Constant] = {}
    carried: set[str] = set()
    free = free_names(view, op_suffix)
    models = [RegionModels(r, view) for r in lowered]
    emitted: list[EmittedNode] = []
    for region, own in zip(lowered, models, strict=True):
        body = function_body(region, view.opset)
        key = body_key(body, region.region)
        first = key not in functions
        if first:
            kind = kind_of(region)
            if not free[kind]:
                raise TooManyBodies(kind, [r for r in lowered[len(emitted) :] if kind_of(r) == kind])
            body.name = free[kind].pop(0)
            functions[key] = body
        function = functions[key]
        attrs: dict[str, object] = {}
        alone: dict[str, object] = {}
        plans: dict[str, LaunchPlan] = {}
        for suffix, compiled in images.items():
            plan = plans[suffix] = region.plan.map_images({name: image.digest for name, image in compiled.items()})
            attrs[f"plan_{suffix}"] = alone[f"plan_{suffix}"] = plan.to_text()
            for name in region.plan.images:
                image = compiled[name]
                value = Constant("", np.frombuffer(image.data, dtype=np.uint8))
                alone[f"image_{image.digest[:16]}"] = value
                if image.digest not in carried:
                    carried.add(image.digest)
                    attrs[f"image_{image.digest[:16]}"] = value
        node = _splice(view, region, function.name, attrs, nhwc, packed)
        shell = Node(node.op, node.inputs, node.outputs, alone, node.name, DOMAIN)
        proto = export_node(shell)
        shell.inputs.clear()
        shell.outputs.clear()
        emitted.append(EmittedNode(region, node, plans, function.name, first, own, proto, function))
    for graph in {id(r.region.graph): r.region.graph for r in lowered}.values():
        toposort(graph)
    return Emission(tuple(emitted), tuple(functions.values()), tuple(e.op for e in emitted))


def _splice(
    view: View, lowered: LoweredRegion, op: str, attrs: Mapping[str, object], nhwc: dict[Variable, Variable], packed: dict[tuple[object, ...], Constant]
) -> Node:
    region = lowered.region
    inputs: list[Variable | Constant] = [_port_tensor(view, p.tensor, p.layout, nhwc) for p in lowered.inputs]
    for i, weights in enumerate(lowered.packed):
        key = (
            id(weights.source) if weights.source is not None else (id(region), i),
            weights.role,
            weights.layout,
            weights.values.shape,
            weights.values.dtype.str,
        )
        if key not in packed:
            base = weights.source.name if weights.source is not None and weights.source.name else f"{region.output.name}_{weights.role}"
            packed[key] = view.constant(f"{base}_packed" if weights.layout else base, weights.values)
            region.graph.constants.append(packed[key])
        inputs.append(packed[key])
    outputs = [_port_tensor(view, p.tensor, p.layout, nhwc) for p in lowered.outputs]
    nodes = region.nodes
    name = view.fresh(f"{kind_of(lowered)}_{nodes[0].name or region.output.name}")
    made = Node(op, inputs, (), dict(attrs), name, DOMAIN, rule="regions")
    insert_before(region.graph, nodes[-1], [made])
    read = {t for node in nodes for t in node.inputs}
    for node in nodes:
        remove_node(region.graph, node)
    made.outputs = outputs
    _drop_unused(view, read)
    return made


def _drop_unused(view: View, tensors: Set[Variable | Constant]) -> None:
    """Takes out initializers and Constant nodes among ``tensors`` that nothing reads any more."""
    kept = {p.value for a in view.model.graph.quantization_annotation for p in a.quant_parameter_tensor_names}
    unused = {t for t in tensors if not t.outputs and t.name not in kept}
    for graph in view.graphs():
        gone = unused.difference(graph.outputs)
        graph.constants = [c for c in graph.constants if c not in gone]
        for node in [n for n in graph.nodes if n.standard("Constant") and n.outputs[0] in gone]:
            remove_node(graph, node)


def _port_tensor(view: View, tensor: Variable, layout: str, nhwc: dict[Variable, Variable]) -> Variable:
    if layout != NHWC:
        return tensor
    if tensor not in nhwc:
        nhwc[tensor] = view.variable(f"{tensor.name}_nhwc")
    return nhwc[tensor]
