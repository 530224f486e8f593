"""What of a model can be compared: outputs that depend on random ops are left out, what goes into a discrete choice is compared before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import ModelProto

from ..graph.view import Constant, Node, Tensor, View, producer, subgraphs

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
    scales = {t.name: probability_scale(t) for node in view.graph.nodes for t in node.outputs if t.name in probes or t in view.graph.outputs}
    return Observed(tuple(outputs), tuple(p for p in probes if p not in outputs), tuple(skipped), {k: v for k, v in scales.items() if v})


def probability_scale(tensor: Tensor) -> float:
    """:data:`PROBABILITY_SCALE` for the result of a sigmoid or softmax, moved about or not; 0 for any other tensor."""
    node = producer(tensor)
    while node is not None and node.standard(*MOVING_OPS):
        node = producer(node.inputs[0])
    return PROBABILITY_SCALE if node is not None and node.standard(*PROBABILITY_OPS) else 0.0


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
