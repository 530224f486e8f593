"""Shape rules, one file a family of ops. Importing the package fills the table ``RULES``."""

from . import control_flow, conv_pool, elementwise, matmul, microsoft, recurrent, reduce, resize, shape_ops, slicing
from .registry import RULES, UNKNOWN, Call, CannotInfer, Fact, Rule, rule

__all__ = [
    "RULES", "UNKNOWN", "Call", "CannotInfer", "Fact", "Rule", "control_flow", "conv_pool", "elementwise", "matmul", "microsoft", "recurrent", "reduce",
    "resize", "rule", "shape_ops", "slicing",
]  # fmt: skip
