"""What of a model can be compared: outputs that depend on random ops are left out, what goes into a discrete choice is compared before it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto

from ..graph.inline import reached
from ..graph.toposort import ordered, reads
from ..graph.view import Node, Tensor, View, constant_value, is_constant, producer, subgraphs

RANDOM_OPS = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
DISCRETE_OPS = ("TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Unique")
PROBABILITY_OPS = ("Sigmoid", "Softmax", "HardSigmoid")
PROBABILITY_SCALE = 0.1  # of the range of 1: root mean square below which their error is measured on the scale, not on the value
MOVING_OPS = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat")


@dataclass(frozen=True)
class Observed:
    """Names to compare: ``outputs`` of the model, and inner tensors that feed discrete ops, ``probes``; ``scales`` of those that are probabilities."""

    outputs: tuple[str, ...]
    probes: tuple[str, ...]
    skipped: tuple[str, ...]
    scales: Mapping[str, float] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether exactly the model's outputs are compared, so that no model has to be changed for it."""
        return not self.probes and not self.skipped


def observe(view: View) -> Observed:
    """What to compare of the model that ``view`` shows, before it is changed."""
    tainted: dict[Tensor, str] = {}
    probes: dict[str, None] = {}
    functions = _function_kinds(view.model)
    for node in ordered(view.graph):
        kinds = {tainted[t] for t in reads(node) if t in tainted} | _kinds(node, functions)
        if "random" not in kinds and node.standard(*DISCRETE_OPS):
            probes.update((t.name, None) for t in node.inputs if t.name and not is_constant(t) and t not in tainted and producer(t) is not None)
        for tensor in node.outputs:
            if kinds:
                tainted[tensor] = "random" if "random" in kinds else "discrete"
    outputs = [t.name for t in view.graph.outputs if t not in tainted]
    skipped = [t.name for t in view.graph.outputs if t in tainted]
    scales = {t.name: probability_scale(t) for node in view.graph.nodes for t in node.outputs if t.name in probes or t in view.graph.outputs}
    return Observed(tuple(outputs), tuple(p for p in probes if p not in outputs), tuple(skipped), {k: v for k, v in scales.items() if v})


def probability_scale(tensor: Tensor) -> float:
    """:data:`PROBABILITY_SCALE` for the result of a sigmoid or softmax, moved about or not; 0 for any other tensor."""
    node = producer(tensor)
    while node is not None and node.standard(*MOVING_OPS):
        node = producer(node.inputs[0])
    return PROBABILITY_SCALE if node is not None and node.standard(*PROBABILITY_OPS) else 0.0


def _kinds(node: Node, functions: Mapping[tuple[str, str], Set[str]]) -> Set[str]:
    """Which of random and discrete ``node`` is, by itself or by what it calls or holds."""
    if node.standard("Dropout"):
        return {"random"} if len(node.inputs) > 2 and _may_be_true(node.inputs[2]) else set()
    kinds = set(_kinds_of(node.op)) if node.standard() else set(functions.get((node.domain, node.op), ()))
    return kinds.union(*(_kinds(inner, functions) for graph in subgraphs(node) for inner in graph.nodes))


def _kinds_of(op: str) -> Set[str]:
    return {"random"} if op in RANDOM_OPS else {"discrete"} if op in DISCRETE_OPS else set()


def _may_be_true(tensor: Tensor) -> bool:
    value = constant_value(tensor) if tensor.name else np.array(False)
    return value is None or bool(value.any())


def _function_kinds(model: ModelProto) -> dict[tuple[str, str], Set[str]]:
    """What the local functions hold; a Dropout that can be told to drop counts as random."""
    named = {(f.domain, f.name): f for f in model.functions}
    found: dict[tuple[str, str], Set[str]] = {}
    for key in named:
        nodes = [n for n in reached(key, named) if n.domain in ("", "ai.onnx")]
        kinds = {kind for n in nodes for kind in _kinds_of(n.op_type)}
        found[key] = kinds | ({"random"} if any(n.op_type == "Dropout" and len(n.input) > 2 for n in nodes) else set())
    return found


def with_probes(model: ModelProto, observed: Observed) -> ModelProto:
    """A copy of ``model`` whose outputs are exactly what is compared."""
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {o.name: o for o in model.graph.output}
    del copy.graph.output[:]
    for name in (*observed.outputs, *observed.probes):
        if name in known:
            copy.graph.output.append(known[name])
        else:
            copy.graph.output.add(name=name)
    return copy
