"""Standard ops in, standard ops out: the canonicalize stage, which is an optimizer by itself.

Rewrites keep the values of every tensor that stays, so what was inferred of a tensor holds as long as the tensor is there. Declared
output shapes and value_info are never facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx
from onnx import AttributeProto, GraphProto

from ..records import Applied, Refusal
from .rules import activation, affine, batchnorm, cleanup, folding, layout, matmul, pad
from .rules.base import Rule
from .rules.context import Context, Facts
from .view import Tensor, View


class Family(Protocol):
    """Rules that run together, in order at each node; the modules of ``rules`` are families."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules."""


FAMILIES: tuple[Family, ...] = (cleanup, folding, layout, activation, pad, batchnorm, affine, matmul)
"""The rule families in the order in which each round runs them."""

MAX_ROUNDS = 16
OLDEST_OPSET = 7


@dataclass(frozen=True)
class CanonicalizeReport:
    """What was rewritten, and what looks like it could be but was not, with the reason.

    Attributes:
        applied: Rewrites in the order in which they were made.
        refused: Refusals that still hold for the result.
        rounds: Rounds that ran; the last one changed nothing, unless it is :data:`MAX_ROUNDS`.
    """

    applied: tuple[Applied, ...] = ()
    refused: tuple[Refusal, ...] = ()
    rounds: int = 0


def canonicalize(view: View, shapes: Facts, infer: Callable[[], Facts] | None = None, families: Sequence[Family] = FAMILIES) -> CanonicalizeReport:
    """Runs the rule families over every graph of ``view``, changing it, until a round changes nothing.

    Args:
        view: The graph to rewrite.
        shapes: What is known of its tensors.
        infer: Says what is known of the tensors of the rewritten view; asked between rounds. Without it new tensors stay unknown.
        families: The rule families to run.
    """
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= view.opset <= newest:
        reason = f"opset {view.opset} is outside {OLDEST_OPSET} to {newest}" if view.opset else "the model imports no standard ops"
        return CanonicalizeReport(refused=(Refusal("canonicalize", reason),))
    applied: list[Applied] = []
    refused: list[Refusal] = []
    rounds = 0
    while rounds < MAX_ROUNDS:
        rounds += 1
        new, refused = _round(view, shapes, families)
        applied += new
        if not new:
            break
        if infer is not None:
            shapes = infer()
    return CanonicalizeReport(tuple(applied), tuple(dict.fromkeys(refused)), rounds)


def _round(view: View, shapes: Facts, families: Sequence[Family]) -> tuple[list[Applied], list[Refusal]]:
    applied: list[Applied] = []
    refused: list[Refusal] = []
    dropped: list[str] = []
    pinned = _pinned(view)
    for family in families:
        for graph in view.graphs():
            ctx = Context(view, graph, shapes, pinned)
            for node in list(graph.nodes):
                for rule in family.rules:
                    result = rule.apply(ctx, node) if ctx.has(node) else None
                    if isinstance(result, Applied):
                        applied.append(result)
                    elif isinstance(result, Refusal):
                        refused.append(result)
            dropped += ctx.finish()
    if dropped and not applied:
        applied.append(Applied("remove-unused-initializers", tuple(dropped)))
    return applied, refused


def _pinned(view: View) -> set[Tensor]:
    """Outputs of any graph, and what is read where the view does not look (lists of graphs as attributes, quantization annotations)."""
    hidden = {name for node in view.nodes() for a in node.attrs.values() if isinstance(a, AttributeProto) for g in a.graphs for name in _names(g)}
    hidden |= {entry.value for graph in view.graphs() for note in graph.origin.quantization_annotation for entry in note.quant_parameter_tensor_names}
    pinned = {t for graph in view.graphs() for t in graph.outputs}
    if hidden:
        pinned |= {t for node in view.nodes() for t in (*node.inputs, *node.outputs) if t.name in hidden}
        pinned |= {t for graph in view.graphs() for t in graph.constants if t.name in hidden}
    return pinned


def _names(graph: GraphProto) -> set[str]:
    nested = {n for node in graph.node for a in node.attribute for g in (a.g, *a.graphs) for n in _names(g)}
    return nested | {n for node in graph.node for n in node.input} | {o.name for o in graph.output}
