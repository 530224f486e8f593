"""Attention and what stands around it become ONNX Runtime's own ops, where nothing of the meaning is lost.

Rules of ours do it, not ``onnxruntime.transformers``; docs/transformers.md has what that package does to the same models, and why.
"""

from __future__ import annotations

from collections.abc import Callable

from ..canonicalize import CanonicalizeReport, canonicalize
from ..shapes import Shapes
from ..toposort import toposort
from ..view import View
from . import attention, pointwise, products

FUSIONS = (attention.NAME, products.NAME, *(rule.name for rule in pointwise.rules))
"""Names of all rules here."""


def may_attend(view: View) -> bool:
    """Whether anything in ``view`` looks like attention at all."""
    return any(node.standard("Softmax") for node in view.nodes())


def fuse_attention(view: View, shapes: Shapes, infer: Callable[[], Shapes], pays: products.Pays) -> CanonicalizeReport:
    """Makes attention ``MultiHeadAttention``, before regions are planned: the products around it stay for them.

    Args:
        view: The graph to rewrite.
        shapes: What is known of its tensors.
        infer: Says what is known of the tensors of ``view`` as it is then.
        pays: Whether one product in the place of three is faster.
    """
    return _sorted(view, canonicalize(view, shapes, infer, (attention, products.Products(pays))))


def fuse_pointwise(view: View, infer: Callable[[], Shapes]) -> CanonicalizeReport:
    """Fuses residual sums with layer norms, and biases with GELUs, after regions have taken what they could."""
    return _sorted(view, canonicalize(view, infer(), infer, (pointwise,)))


def _sorted(view: View, report: CanonicalizeReport) -> CanonicalizeReport:
    for graph in view.graphs() if report.applied else ():
        toposort(graph)
    return report
