"""What lowering hands to compile and emit: one :class:`LoweredRegion` a custom node."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..graph.view import Constant, Variable
from ..launch import LaunchPlan
from ..plan.regions.region import Region
from ..records import KernelSpec

NHWC, NCHW = "nhwc", "nchw"


@dataclass(frozen=True)
class Port:
    """One activation that a node reads or writes, and the layout in which it crosses the border of the node."""

    tensor: Variable
    layout: str
    channels: int


@dataclass(frozen=True, eq=False)
class Packed:
    """One weight input of a node.

    Attributes:
        role: ``weights`` (of a convolution, ``layout`` says how they are packed), ``bias`` or ``vector`` (float32, one a channel).
        source: Constant that it was packed from, or None for one that was computed.
        values: What the kernel reads.
        channels: True length of the last axis.
    """

    role: str
    values: np.ndarray = field(repr=False)
    source: Constant | None = None
    layout: str = ""
    channels: int = 0


@dataclass(frozen=True, eq=False)
class StageWeights:
    """Indices into :attr:`LoweredRegion.packed` of what one stage reads: weights, bias, one vector an epilogue step (or None)."""

    weights: int | None
    bias: int | None
    vectors: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class LoweredRegion:
    """A region with everything that its node needs.

    The node's inputs are ``inputs`` and then ``packed``, in order; its outputs are ``outputs``.

    Attributes:
        plan: What it launches; its images are named by the text of their specs until they are compiled.
        specs: Kernels by that text.
    """

    region: Region
    inputs: tuple[Port, ...]
    packed: tuple[Packed, ...]
    stage_weights: tuple[StageWeights, ...]
    outputs: tuple[Port, ...]
    plan: LaunchPlan
    specs: dict[str, KernelSpec]
