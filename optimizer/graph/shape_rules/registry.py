"""What a shape rule sees (:class:`Call`), what it says (:class:`Fact`), and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx_graphsurgeon as gs
from onnx import AttributeProto

from ...errors import TilewrightError
from ..dims import equal
from ..symbols import Dim
from ..view import Node, Tensor

Shape: TypeAlias = tuple[Dim, ...]
Values: TypeAlias = np.ndarray  # dtype object; entries are ints, or expressions; fractions only in float tensors

MAX_VALUES = 1024  # contents of larger tensors are not followed
MAX_UNKNOWN = 16  # unknown integers of a tensor up to this size get symbols of their own


@dataclass(frozen=True)
class Fact:
    """What is known of one tensor: its shape (None: not even the rank), its contents, its dtype (TensorProto enum).

    A rule leaves ``dtype`` None where the op's schema says it.
    """

    shape: Shape | None = None
    value: Values | None = None
    dtype: int | None = None


UNKNOWN = Fact()


class CannotInfer(TilewrightError):
    """A rule has nothing to say of a node: an operand that it needs is unknown."""


class Engine(Protocol):
    """What rules ask the inference for."""

    def fact(self, tensor: Tensor) -> Fact:
        """What is known of ``tensor``; the contents of constants only on demand, see :meth:`value`."""

    def value(self, tensor: Tensor) -> Values | None:
        """Contents of ``tensor``, read from a small constant where it is one."""

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is a constant; nothing is read."""

    def value_or_symbols(self, tensor: Tensor) -> Values | None:
        """As :meth:`value`; unknown contents of a small integer tensor are given symbols."""

    def opset(self, domain: str) -> int:
        """Imported version of ``domain``."""

    def fresh(self, hint: str = "", size: bool = True) -> Dim:
        """A new symbol: of a size, or of an integer of either sign."""

    def broadcast_dim(self, a: Dim, b: Dim) -> Dim:
        """The size of two broadcast dims."""

    def graph(self, graph: gs.Graph, inputs: Sequence[Fact]) -> list[Fact]:
        """Infers a sub-graph for given facts of its inputs and returns those of its outputs."""

    def mark(self) -> int:
        """A point in the sequence of fresh symbols."""

    def is_newer(self, dim: Dim, mark: int) -> bool:
        """Whether ``dim`` has a symbol that was made after ``mark``."""


class Call:
    """One node as a rule sees it: facts of its inputs, its attributes, and a source of fresh symbols."""

    def __init__(self, node: Node, engine: Engine) -> None:
        self.node = node
        self.engine = engine

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return self.engine.opset("")

    def has(self, index: int) -> bool:
        """Whether input ``index`` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index].name)

    def fact(self, index: int) -> Fact:
        """What is known of input ``index``."""
        return self.engine.fact(self.node.inputs[index]) if self.has(index) else UNKNOWN

    def shape(self, index: int) -> Shape | None:
        """Shape of input ``index``, or None."""
        return self.fact(index).shape

    def need(self, index: int) -> Shape:
        """Shape of input ``index``. Raises CannotInfer where it is unknown."""
        shape = self.shape(index)
        if shape is None:
            raise CannotInfer(f"the shape of input {index} is unknown")
        return shape

    def dtype(self, index: int) -> int | None:
        """Dtype of input ``index``, or None."""
        return self.fact(index).dtype

    def value(self, index: int) -> Values | None:
        """Known contents of input ``index``, or None."""
        return self.engine.value(self.node.inputs[index]) if self.has(index) else None

    def entries(self, index: int) -> list[Dim] | None:
        """Contents of input ``index`` as a flat list, or None."""
        value = self.value(index)
        return None if value is None else list(value.ravel())

    def ints(self, index: int) -> list[int] | None:
        """Contents of input ``index`` as a flat list if all are numbers, else None."""
        entries = self.entries(index)
        return [int(e) for e in entries] if entries is not None and all(isinstance(e, int) for e in entries) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute ``name``. Raises CannotInfer for a reference to an attribute of an unknown caller."""
        value = self.node.attrs.get(name, default)
        if isinstance(value, AttributeProto):
            raise CannotInfer(f"attribute {name} is not a plain value")
        return value

    def axis(self, axis: int, rank: int) -> int:
        """``axis`` counted from the front. Raises CannotInfer where it is out of range."""
        if not -rank <= axis < rank:
            raise CannotInfer(f"axis {axis} of a tensor of rank {rank}")
        return axis % rank

    def axes(self, index: int, attr: str = "axes") -> list[int] | None:
        """Axes from input ``index`` or, in older opsets, attribute ``attr``; [] where neither is given, None where they are not known."""
        if self.has(index):
            return self.ints(index)
        return [int(a) for a in self.attr(attr, [])]

    def fresh(self, count: int) -> Shape:
        """A shape of ``count`` unknown dims."""
        return tuple(self.engine.fresh() for _ in range(count))

    def broadcast(self, *shapes: Shape | None) -> Shape:
        """The shape that all ``shapes`` broadcast to. Raises CannotInfer where a rank is unknown."""
        known = [s for s in shapes if s is not None]
        if len(known) < len(shapes):
            raise CannotInfer("the shape of an operand is unknown")
        result: list[Dim] = [1] * max(len(s) for s in known)
        for shape in known:
            for i, dim in enumerate(reversed(shape), 1):
                result[-i] = dim if result[-i] == 1 else result[-i] if dim == 1 else self.engine.broadcast_dim(result[-i], dim)
        return tuple(result)


Rule: TypeAlias = Callable[[Call], Sequence[Fact]]
_R = TypeVar("_R", bound=Rule)

RULES: dict[tuple[str, str], Rule] = {}


def rule(*ops: str, domain: str = "") -> Callable[[_R], _R]:
    """Registers a function as the rule of ``ops``. A rule may say less than the node has outputs; the rest is unknown.

    Raises:
        ValueError: one of ``ops`` has a rule already.
    """

    def register(function: _R) -> _R:
        for op in ops:
            if (domain, op) in RULES:
                raise ValueError(f"op {domain}::{op} has two shape rules")
            RULES[domain, op] = function
        return function

    return register


def same_dim(a: Dim, b: Dim) -> Dim:
    """Of two sizes that a valid run makes equal, the more definite one."""
    return a if isinstance(a, int) or not isinstance(b, int) else b


def join(a: Fact, b: Fact, fresh: Callable[[], Dim]) -> Fact:
    """What holds of a tensor that is either ``a`` or ``b``; dims that are not proved equal become ``fresh`` ones."""
    dtype = a.dtype if a.dtype == b.dtype else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Fact(dtype=dtype)
    shape = tuple(x if equal(x, y) else fresh() for x, y in zip(a.shape, b.shape, strict=True))
    one, two = a.value, b.value
    same = one is not None and two is not None and one.shape == two.shape and all(map(equal, one.flat, two.flat))
    return Fact(shape, a.value if same else None, dtype)


def with_dtype(facts: Sequence[Fact], dtypes: Mapping[int, int | None]) -> list[Fact]:
    """``facts`` with dtypes filled in by output index where they have none."""
    return [f if f.dtype is not None else replace(f, dtype=dtypes.get(i)) for i, f in enumerate(facts)]


def array(entries: Sequence[Dim], shape: Sequence[int] | None = None) -> Values:
    """Contents as an object array, one-dimensional unless ``shape`` is given."""
    result = np.empty(len(entries), dtype=object)
    result[:] = entries
    return result if shape is None else result.reshape(tuple(shape))
