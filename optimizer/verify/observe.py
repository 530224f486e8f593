"""What of a model can be compared: outputs that depend on random ops are left out, what goes into a discrete choice is compared before it."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto

from ..graph.view import Constant, Node, Tensor, View, producer, subgraphs

RANDOM_OPS = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
DISCRETE_OPS = ("TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Unique")


@dataclass(frozen=True)
class Observed:
    """Names to compare: ``outputs`` of the model, and inner tensors that feed discrete ops, ``probes``."""

    outputs: tuple[str, ...]
    probes: tuple[str, ...]
    skipped: tuple[str, ...]


def observe(view: View) -> Observed:
    """What to compare of the model that ``view`` shows, before it is changed."""
    tainted: dict[Tensor, str] = {}
    probes: dict[str, None] = {}
    for node in view.graph.nodes:
        kinds = {tainted[t] for t in node.inputs if t in tainted}
        if _has(node, RANDOM_OPS):
            kinds.add("random")
        elif _has(node, DISCRETE_OPS):
            if "random" not in kinds and node.standard(*DISCRETE_OPS):
                probes.update((t.name, None) for t in node.inputs if t.name and not isinstance(t, Constant) and t not in tainted and producer(t) is not None)
            kinds.add("discrete")
        for tensor in node.outputs:
            if kinds:
                tainted[tensor] = "random" if "random" in kinds else "discrete"
    outputs = [t.name for t in view.graph.outputs if t not in tainted]
    skipped = [t.name for t in view.graph.outputs if t in tainted]
    return Observed(tuple(outputs), tuple(p for p in probes if p not in outputs), tuple(skipped))


def _has(node: Node, ops: tuple[str, ...]) -> bool:
    return node.standard(*ops) or any(_has(inner, ops) for graph in subgraphs(node) for inner in graph.nodes)


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
