"""Writes standard ops into a list of nodes in the spelling of a given opset."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from ..plan.regions.region import padded


class Writer:
    """Appends nodes whose tensors are called t1, t2, ...

    Attributes:
        nodes: What was written so far.
        opset: Version of the default domain that decides between attributes and inputs.
        taken: Names that are none of its own.
    """

    def __init__(self, opset: int, taken: Set[str] = frozenset()) -> None:
        self.opset = opset
        self.taken = taken
        self.nodes: list[NodeProto] = []
        self.count = 0

    def emit(self, op: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """One node; returns the name of its output."""
        name = output or self.fresh()
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def fresh(self) -> str:
        """A new tensor name."""
        self.count += 1
        while f"t{self.count}" in self.taken:
            self.count += 1
        return f"t{self.count}"

    def constant(self, values: np.ndarray) -> str:
        """A Constant node."""
        return self.emit("Constant", [], value=numpy_helper.from_array(np.asarray(values)))

    def ints(self, *values: int) -> str:
        """A Constant node of int64 values, which is legal from opset 9 on."""
        return self.constant(np.array(values, dtype=np.int64))

    def cast(self, name: str, dtype: int) -> str:
        """``name`` as a ``TensorProto`` dtype."""
        return self.emit("Cast", [name], to=dtype)

    def cut(self, name: str, axis: int, length: int) -> str:
        """The first ``length`` entries along ``axis``."""
        if self.opset < 10:
            return self.emit("Slice", [name], starts=[0], ends=[length], axes=[axis])
        return self.emit("Slice", [name, self.ints(0), self.ints(length), self.ints(axis)])

    def pad_last(self, name: str, rank: int, count: int) -> str:
        """``count`` zeros behind the last axis."""
        pads = [0] * (2 * rank - 1) + [count]
        if self.opset < 11:
            return self.emit("Pad", [name], mode="constant", pads=pads, value=0.0)
        return self.emit("Pad", [name, self.ints(*pads)], mode="constant")

    def unsqueeze(self, name: str, *axes: int) -> str:
        """New axes of length 1."""
        return self.emit("Unsqueeze", [name], axes=axes) if self.opset < 13 else self.emit("Unsqueeze", [name, self.ints(*axes)])

    def squeeze(self, name: str, axis: int) -> str:
        """Without the axis of length 1."""
        return self.emit("Squeeze", [name], axes=[axis]) if self.opset < 13 else self.emit("Squeeze", [name, self.ints(axis)])

    def from_nhwc(self, name: str, channels: int, rank: int, compute: str) -> str:
        """Channels last, padded -> channels first, ``channels`` of them."""
        moved = self.emit("Transpose", [name], perm=[0, rank - 1, *range(1, rank - 1)])
        return self.cut(moved, 1, channels) if padded(channels, compute) != channels else moved

    def to_nhwc(self, name: str, channels: int, rank: int, compute: str) -> str:
        """Channels first -> channels last, padded with zeros."""
        moved = self.emit("Transpose", [name], perm=[0, *range(2, rank), 1])
        missing = padded(channels, compute) - channels
        return self.pad_last(moved, rank, missing) if missing else moved
