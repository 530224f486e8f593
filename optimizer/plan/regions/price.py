"""What a region costs as one custom node, and what ONNX Runtime's own kernels would cost for the same nodes; microseconds by the cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...target import DeviceSpec
from ..cost import ELEMENT_BYTES, KERNEL_START_US, GemmShape, memory_us, streaming_us, vendor_conv_us, vendor_matmul_us
from ..sizes import Sizes
from .region import Region, Stage, Window
from .tiles import START_US, Tile, choose_tile, is_narrow, tile_ladder, tile_us

CUDA_CORE_SHARE = 0.25  # of the fp32 rate that the CUDA-core convolutions reach
FP32_TFLOPS = 50.0
CHAIN_STEP_US = 0.75  # a launch that overlaps the one before it
CONV_START_US = 1.25  # ramp-up and drain of a tensor-core convolution, its launch apart
WARM_SHARE = 0.8  # of the time after that which tiles.py expects with cold caches
SUSTAINED_SHARE = 0.22  # of the mma.sync rate that large convolutions reach in whole models


@dataclass(frozen=True)
class Pricing:
    """Prices stages for one device at given sizes.

    Args:
        device: GPU to price for.
        sizes: Numbers for the dims.
        dynamic: Whether the number of pixels is only known at run time, so that several tiles are kept.
    """

    device: DeviceSpec
    sizes: Sizes

    def pixels(self, stage: Stage, rank: int) -> tuple[int, int]:
        """Input and output pixels of ``stage``, batch included."""
        if stage.kind == "matmul":
            rows = math.prod(self.sizes.of(stage.source, rank)[:-1])
            return rows, rows
        n, _, *extent = self.sizes.of(stage.source, rank)
        before = after = n
        for axis, size in enumerate([1, *extent] if rank == 3 else extent):
            before *= size
            after *= 1 if stage.kind.startswith("global") else _output(stage.window, axis, size) if stage.window else size
        return before, after

    def gemm(self, stage: Stage, rank: int) -> GemmShape:
        """A convolution as a matrix product, one for each group, or a matrix product itself."""
        if stage.kind == "matmul":
            return GemmShape(self.pixels(stage, rank)[0], stage.channels_out, stage.channels_in)
        assert stage.window is not None
        depth = stage.window.kernel[0] * stage.window.kernel[1] * stage.channels_in // stage.groups
        return GemmShape(self.pixels(stage, rank)[1], stage.channels_out // stage.groups, depth, stage.groups)

    def tiles(self, stage: Stage, compute: str, rank: int) -> list[tuple[int | None, Tile]]:
        """Tiles for a convolution or matrix product: one where its sizes are fixed, a ladder over the number of pixels where they are not."""
        shape = self.gemm(stage, rank)
        narrow = is_narrow(stage, compute)
        known = self.sizes.shapes.shape(stage.source)
        if known is not None and all(isinstance(d, int) for d in known):
            return [(None, choose_tile(self.device, compute, shape, narrow))]
        return tile_ladder(self.device, compute, shape, 1, max(4 * shape.m, 1 << 17), narrow)

    def bytes(self, stage: Stage, region: Region) -> float:
        """Bytes that a stage must move: input, weights, operands, output."""
        before, after = self.pixels(stage, region.rank)
        elements = before * stage.channels_in + after * stage.channels_out * (1 + sum(not op.gate for op in stage.epilogue if op.tensor is not None))
        weights = math.prod(stage.weights.shape) if stage.weights is not None else 0
        return float(ELEMENT_BYTES[region.compute] * (elements + weights))

    def stage_us(self, stage: Stage, region: Region) -> float:
        """One stage as our kernel, its launch apart."""
        nbytes = self.bytes(stage, region)
        if stage.kind in ("conv", "matmul"):
            shape = self.gemm(stage, region.rank)
            if stage.groups == 1 or shape.n >= 8:
                tile = tile_us(self.device, region.compute, shape, choose_tile(self.device, region.compute, shape, is_narrow(stage, region.compute))) - START_US
                sustained = shape.flops / (self.device.mma_tflops[region.compute] * SUSTAINED_SHARE) * 1e-6
                return CONV_START_US + max(WARM_SHARE * tile, sustained, memory_us(self.device, nbytes))
            return KERNEL_START_US + max(shape.flops / (FP32_TFLOPS * CUDA_CORE_SHARE) * 1e-6, memory_us(self.device, nbytes))
        return KERNEL_START_US + memory_us(self.device, nbytes)

    def ours_us(self, region: Region, conversions: int) -> float:
        """The region as one node with ``conversions`` layout changes of whole tensors at its border."""
        total = sum(self.stage_us(s, region) + CHAIN_STEP_US for s in region.stages)
        pixels = self.pixels(region.stages[0], region.rank)[1]
        nbytes = 2.0 * pixels * region.channels * ELEMENT_BYTES[region.compute]
        return total + conversions * (streaming_us(self.device, nbytes) - self.device.launch_us + CHAIN_STEP_US)

    def vendor_us(self, region: Region) -> float:
        """The same nodes one by one in ONNX Runtime, which fuses a residual Add and then a Relu into a convolution and nothing else."""
        total = 0.0
        for stage in region.stages:
            after = self.pixels(stage, region.rank)[1]
            tensor = float(after * stage.channels_out * ELEMENT_BYTES[region.compute])
            if stage.kind == "conv":
                total += vendor_conv_us(self.device, region.compute, self.gemm(stage, region.rank), self.bytes(stage, region))
            elif stage.kind == "matmul":
                total += vendor_matmul_us(self.device, region.compute, self.gemm(stage, region.rank), self.bytes(stage, region))
            elif stage.kind not in ("pointwise", "concat"):
                total += streaming_us(self.device, self.bytes(stage, region))
            fuses = stage.kind == "conv"
            for op in stage.epilogue:
                relu = op.activation is not None and op.activation.kind == "relu"
                fused = fuses and (relu or op.kind == "add")
                fuses = fused and not relu
                if not fused:
                    total += streaming_us(self.device, (3 if op.tensor is not None else 2) * tensor) * max(1, len(op.nodes))
        if region.joints:
            total += streaming_us(self.device, 2.0 * self.pixels(region.stages[0], region.rank)[1] * region.channels * ELEMENT_BYTES[region.compute])
        return total


def _output(window: Window, axis: int, size: int) -> int:
    if window.auto_pad:
        return -(-size // window.strides[axis])
    span = size + window.pads[axis] + window.pads[axis + 2] - ((window.kernel[axis] - 1) * window.dilations[axis] + 1)
    return max(1, (-(-span // window.strides[axis]) if window.ceil_mode else span // window.strides[axis]) + 1)
