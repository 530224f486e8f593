"""The records of the region planner: a region is a few stages that one custom node runs, a stage is one kernel's worth of work.

Layout inside: NHWC, channels padded to the vector width of the compute type; a one-dimensional convolution has height 1. Matrix products keep the
model's own layout: their channels are the last axis, not padded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...graph.view import Constant, Node, Tensor, Variable
from ...records import Activation

VECTOR_WIDTH = {"f16": 8, "tf32": 4}  # elements of one 16-byte access
MAX_CONCAT_SOURCES = 8  # tensors that one launch puts side by side


def padded(channels: int, compute: str) -> int:
    """``channels`` rounded up to the vector width of the compute type ``f16`` or ``tf32``."""
    width = VECTOR_WIDTH[compute]
    return -(-channels // width) * width


@dataclass(frozen=True)
class Window:
    """The sliding window of a convolution or pooling, height before width.

    Attributes:
        kernel, strides, dilations: Two ints each.
        pads: Top, left, bottom, right.
        auto_pad: ``""`` (``pads`` counts), ``same_upper`` or ``same_lower`` (pads follow from the input's size at run time).
        ceil_mode: Whether the output size is rounded up.
        count_include_pad: Whether an average counts padding.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    auto_pad: str = ""
    ceil_mode: bool = False
    count_include_pad: bool = False

    @property
    def pointwise(self) -> bool:
        """Whether every output pixel reads exactly the input pixel of its own position."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and self.pads == (0, 0, 0, 0) and not self.auto_pad


@dataclass(frozen=True)
class EpilogueOp:
    """One step on the fp32 value before it is stored.

    Attributes:
        kind: ``act`` (activation, with ``vector`` = slope for prelu); ``affine`` (a * x + b); ``scale`` and ``shift`` (by ``vector``, one
            float a channel); ``add``, ``mul``, ``sub`` (x - tensor), ``rsub`` (tensor - x) with ``tensor``.
        tensor: The other operand: of the stage's own shape, or of shape [N, C, 1, 1] where ``gate`` is true.
        nodes: The nodes that spell an activation, from the tensor that it reads to its result.
    """

    kind: str
    activation: Activation | None = None
    vector: np.ndarray | None = field(default=None, repr=False)
    tensor: Variable | None = None
    gate: bool = False
    a: float = 1.0
    b: float = 0.0
    nodes: tuple[Node, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.kind == "act":
            return str(self.activation)
        if self.tensor is not None:
            return f"{self.kind}({self.tensor.name}{', gate' if self.gate else ''})"
        return f"affine({self.a:g},{self.b:g})" if self.kind == "affine" else self.kind


@dataclass(frozen=True, eq=False)
class Stage:
    """One kernel's worth of work: a convolution, a pooling or pointwise work, and the epilogue that is fused into it.

    Attributes:
        kind: ``conv``, ``matmul``, ``max_pool``, ``average_pool``, ``global_average_pool``, ``global_max_pool``, ``pointwise`` or ``concat``.
        source: Tensor it reads; of a ``concat`` the first one.
        result: Tensor that it computes (with its epilogue).
        channels_in, channels_out: True channel counts.
        nodes: The view's nodes that it replaces, in topological order.
        offset: First channel of ``result`` in the region's output, where a Concat follows.
        more: Of a ``concat``, the other tensors with their channel counts.
    """

    kind: str
    source: Variable
    result: Variable
    channels_in: int
    channels_out: int
    nodes: tuple[Node, ...]
    window: Window | None = None
    groups: int = 1
    weights: Constant | None = None
    bias: np.ndarray | None = field(default=None, repr=False)
    epilogue: tuple[EpilogueOp, ...] = ()
    offset: int = 0
    more: tuple[tuple[Variable, int], ...] = ()

    @property
    def reads(self) -> tuple[tuple[Variable, int], ...]:
        """The tensors that it reads, its epilogue's apart, with their channel counts."""
        return ((self.source, self.channels_in - sum(c for _, c in self.more)), *self.more)

    @property
    def axis(self) -> int:
        """The axis of its tensors that holds the channels: 1 for images, the last one for matrix products."""
        return -1 if self.kind == "matmul" else 1

    @property
    def depthwise(self) -> bool:
        """Whether it is a convolution of one input channel a group."""
        return self.kind == "conv" and self.groups == self.channels_in and self.groups > 1

    @property
    def operands(self) -> tuple[Variable, ...]:
        """Tensors that the epilogue reads."""
        return tuple(op.tensor for op in self.epilogue if op.tensor is not None)

    def extended(self, op: EpilogueOp, nodes: tuple[Node, ...], result: Variable) -> Stage:
        """The stage with one more epilogue step."""
        return replace(self, epilogue=(*self.epilogue, op), nodes=(*self.nodes, *nodes), result=result)

    def __str__(self) -> str:
        text = f"{self.kind} {' | '.join(f'{t.name}[{c}]' for t, c in self.reads)} -> {self.result.name}[{self.channels_out}]"
        if self.window:
            w = self.window
            text += f" {w.kernel[0]}x{w.kernel[1]}/{w.strides[0]}x{w.strides[1]} pads {','.join(map(str, w.pads))}{w.auto_pad}"
            text += f" dil {w.dilations[0]}x{w.dilations[1]}" if w.dilations != (1, 1) else ""
        text += f" groups {self.groups}" if self.groups > 1 else ""
        text += f" at {self.offset}" if self.offset else ""
        return text + (f" + {' + '.join(map(str, self.epilogue))}" if self.epilogue else "")


@dataclass(frozen=True, eq=False)
class Region:
    """What one custom node computes: stages that write disjoint channels of one output.

    Attributes:
        graph: Graph of the view that holds its nodes.
        compute: ``f16`` or ``tf32``.
        rank: Of its tensors: 4 for images, 3 for sequences, 2 and more for a matrix product.
        output: Its result; where a Concat is part of it, the Concat's (with the epilogue that follows).
        channels: Channels of ``output``.
        joints: Nodes that belong to no stage (the Concat).
        dtype: Element type of its tensors, a ``TensorProto`` enum.
        label: What reports call it, also when its nodes are gone.
    """

    graph: gs.Graph
    compute: str
    rank: int
    stages: tuple[Stage, ...]
    output: Variable
    channels: int
    dtype: int
    joints: tuple[Node, ...] = ()
    label: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.output.name if self.joints else self.stages[0].nodes[0].label)

    @property
    def axis(self) -> int:
        """The axis of its tensors that holds the channels."""
        return self.stages[0].axis

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that it replaces, each once, in the graph's order."""
        mine = {n for s in self.stages for n in s.nodes} | set(self.joints)
        return tuple(n for n in self.graph.nodes if n in mine)

    @property
    def inputs(self) -> tuple[Variable, ...]:
        """Tensors that it reads, weights apart, each once, in the order of use."""
        made = {s.result for s in self.stages}
        return tuple(dict.fromkeys(t for s in self.stages for t in (*(t for t, _ in s.reads), *s.operands) if t not in made))

    def __str__(self) -> str:
        return "\n".join([f"region {self.output.name}[{self.channels}] {self.compute}", *(f"  {s}" for s in self.stages)])


__all__ = ["VECTOR_WIDTH", "EpilogueOp", "Region", "Stage", "Tensor", "Window", "padded"]
