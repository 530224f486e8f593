"""Sizes to price a plan for: every dim as a number, from the user's usual shapes where they say so and from plain defaults elsewhere.

They guide choices only; what is generated is right for every size.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from ..graph.shapes import Dim, Shapes
from ..graph.view import Tensor

DEFAULT_BATCH = 1
DEFAULT_EXTENT = 224  # of a spatial dim of a model input
UNKNOWN_EXTENT = 28  # of a dim that follows from nothing


class Sizes:
    """Numbers for symbolic dims.

    Args:
        bindings: Sizes of symbols by name, from the user's options.
    """

    def __init__(self, shapes: Shapes, bindings: Mapping[str, int]) -> None:
        self.shapes = shapes
        self._defaults = dict(bindings)

    def of(self, tensor: Tensor, rank: int) -> tuple[int, ...]:
        """The shape of ``tensor`` in numbers; defaults throughout where not even its rank is known."""
        shape = self.shapes.shape(tensor)
        if shape is None or len(shape) != rank:
            return (DEFAULT_BATCH, *[UNKNOWN_EXTENT] * (rank - 1))
        return tuple(self.number(d, batch=i == 0) for i, d in enumerate(shape))

    def number(self, dim: Dim, batch: bool = False) -> int:
        """One dim as a number, at least 1."""
        if isinstance(dim, int):
            return max(dim, 1)
        values: dict[sympy.Symbol, int] = {}
        for symbol in dim.free_symbols:
            default = DEFAULT_BATCH if batch else DEFAULT_EXTENT if symbol.name in self.shapes.symbols else UNKNOWN_EXTENT
            values[symbol] = self._defaults.get(symbol.name, default)
        value = dim.subs(values)
        return max(int(value), 1) if value.is_number else UNKNOWN_EXTENT
