"""Symbolic shape inference: every tensor of a view gets its dtype, its shape as expressions of the named input dims, and small contents.

Facts come from the declared types of the model's inputs and from the rules of the ops. Declared types of outputs and value_info are
never believed. Whatever is not known is None; a dim that is not known is a symbol of its own. The ranges that a user gives only
answer :meth:`Shapes.bounds`: no shape depends on them, so what is inferred holds on every input that the model accepts.

One exception: a tensor without elements may have other sizes, or another rank, than inferred. Reshape reads a 0 as "copy", and loops that
never run return whatever the runtime likes.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from onnx import TensorProto

from . import dims
from .bounds import Bound, Bounds
from .shape_engine import Inference, constant_contents, dtype_of
from .shape_rules import UNKNOWN, Fact
from .shape_rules.registry import Shape, Values
from .symbols import Dim, evaluate, size_symbol
from .view import Constant, Tensor, View, is_constant

__all__ = ["Dim", "Shapes", "infer"]


class Shapes:
    """What is known of every tensor of a view, sub-graphs included. Read only; tensors are told apart by identity.

    Tensors that were added after the inference are unknown (constants are always known). ``str()`` is the stable text form: one line a tensor.

    Attributes:
        symbols: Names of the symbols that stand for dims of the model's inputs: dim_params, and ``<input>_<axis>`` for dims without a name.
        problems: Nodes on which a rule failed unexpectedly; their outputs are unknown.
    """

    def __init__(self, run: Inference, ranges: Mapping[str, tuple[int, int | None]]) -> None:
        self._facts = dict(run.facts)
        self._bounds = Bounds(ranges)
        self._read: dict[Tensor, Values | None] = {}
        self.symbols = tuple(run.input_symbols)
        self.problems = tuple(run.problems)

    def _fact(self, tensor: Tensor) -> Fact:
        if isinstance(tensor, Constant):
            return Fact(tuple(tensor.shape), None, dtype_of(tensor))
        return self._facts.get(tensor, UNKNOWN)

    def dtype(self, tensor: Tensor) -> int | None:
        """TensorProto enum of the element type; None where it is unknown or ``tensor`` is a sequence, an optional or a map."""
        return self._fact(tensor).dtype

    def shape(self, tensor: Tensor) -> Shape | None:
        """The dims, or None where not even the rank is known."""
        return self._fact(tensor).shape

    def rank(self, tensor: Tensor) -> int | None:
        """The number of dims, or None."""
        shape = self._fact(tensor).shape
        return None if shape is None else len(shape)

    def static(self, tensor: Tensor) -> tuple[int, ...] | None:
        """The shape where every dim is a number, else None."""
        sizes = tuple(d for d in self._fact(tensor).shape or () if isinstance(d, int))
        return sizes if len(sizes) == self.rank(tensor) else None

    def value(self, tensor: Tensor) -> Values | None:
        """Contents of a small tensor where they are known: an array of objects, each an int or an expression, else None.

        Integer and boolean tensors up to 1024 elements are followed, and float ones that hold sizes or scales (fractions are sympy rationals).
        """
        known = self._fact(tensor).value
        if known is not None or not is_constant(tensor):
            return known
        if tensor not in self._read:
            self._read[tensor] = constant_contents(tensor)
        return self._read[tensor]

    def symbol(self, name: str) -> sympy.Symbol:
        """The symbol called ``name`` as it stands in shapes."""
        return size_symbol(name)

    def bounds(self, dim: Dim) -> tuple[int, Bound]:
        """The least and the greatest size of ``dim`` within the user's ranges, the greatest None where there is none."""
        low, high = self._bounds.interval(dim)
        return max(low or 0, 0), high

    def divisible(self, dim: Dim, k: int) -> bool:
        """Whether ``dim`` is a multiple of ``k`` on every input; False where that is not proved."""
        return dims.divisible(dim, k)

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether both dims are the same on every input; False where that is not proved."""
        return dims.equal(a, b)

    def evaluate(self, dim: Dim, values: Mapping[str, int]) -> int:
        """The size of ``dim`` for given sizes of the symbols.

        Raises:
            DimError: a symbol of ``dim`` has no value.
        """
        return evaluate(dim, values)

    def __str__(self) -> str:
        return "\n".join(self._line(t) for t in self._facts if t.name)

    def _line(self, tensor: Tensor) -> str:
        fact = self._facts[tensor]
        dtype = "?" if fact.dtype is None else TensorProto.DataType.Name(fact.dtype).lower()
        shape = "?" if fact.shape is None else f"[{', '.join(map(str, fact.shape))}]"
        value = "" if fact.value is None else f" = {'[' if fact.value.ndim else ''}{', '.join(map(str, fact.value.flat))}{']' if fact.value.ndim else ''}"
        return f"{tensor.name}: {dtype}{shape}{value}"


def infer(view: View, ranges: Mapping[str, tuple[int, int | None]] | None = None) -> Shapes:
    """Shapes of every tensor of ``view``.

    Args:
        view: The graph; it is not changed. Nodes must come after those that they read.
        ranges: Least and greatest size (None: no limit) of symbols, by name. They answer :meth:`Shapes.bounds` and nothing else.
    """
    run = Inference(view)
    run.run()
    return Shapes(run, ranges or {})
