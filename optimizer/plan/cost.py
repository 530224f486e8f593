"""What work costs on a GPU, from its :class:`DeviceSpec` alone: a roofline with a floor per kernel.

Times are microseconds on an otherwise idle device inside a CUDA graph. They rank choices; they are not measurements. Constants and what they
were fitted on: docs/cost-model.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..target import DeviceSpec

L2_SHARE = 0.6  # tensors up to this share of the L2 are read from it by the next kernel
KERNEL_START_US = 0.35  # ramp-up and drain of one small kernel, its launch apart
VENDOR_DEPTHWISE_US = 1.0  # of a depthwise convolution, its launch and work apart
VENDOR_DEPTH_US = 0.003  # a step of the reduction of any other convolution
ATTENTION_SHARE = 0.5  # of the rate of large matrix products that fused attention kernels reach
POINTWISE_EFFICIENCY = 0.8  # of the bandwidth roof, for streaming kernels
ELEMENT_BYTES = {"f16": 2, "tf32": 4}


@dataclass(frozen=True)
class GemmShape:
    """A product of ``m`` x ``k`` by ``k`` x ``n``, ``groups`` times (a convolution: m = pixels, n = output channels a group)."""

    m: int
    n: int
    k: int
    groups: int = 1

    @property
    def flops(self) -> float:
        """Floating-point operations, a multiply-add counted twice."""
        return 2.0 * self.m * self.n * self.k * self.groups


def memory_us(device: DeviceSpec, nbytes: float) -> float:
    """Time to move ``nbytes`` once: from the L2 where they fit, else from DRAM."""
    rate = device.l2_gbs if nbytes <= L2_SHARE * device.l2_bytes else device.dram_gbs
    return nbytes / rate * 1e-3


def streaming_us(device: DeviceSpec, nbytes: float) -> float:
    """One kernel that only moves ``nbytes``."""
    return device.launch_us + KERNEL_START_US + memory_us(device, nbytes) / POINTWISE_EFFICIENCY


def vendor_matmul_us(device: DeviceSpec, compute: str, shape: GemmShape, nbytes: float) -> float:
    """One matmul by the vendor's library as ONNX Runtime calls it."""
    roof = max(shape.flops / device.vendor_tflops[compute] * 1e-6, memory_us(device, nbytes))
    return device.launch_us + max(device.vendor_floor_us, roof / _fill(device, shape))


def vendor_attention_us(device: DeviceSpec, compute: str, flops: float, nbytes: float) -> float:
    """One fused attention kernel of ONNX Runtime; its bytes are those of queries, keys, values, mask and result."""
    return device.launch_us + max(device.vendor_floor_us, flops / (ATTENTION_SHARE * device.vendor_tflops[compute]) * 1e-6, memory_us(device, nbytes))


def vendor_conv_us(device: DeviceSpec, compute: str, shape: GemmShape, nbytes: float) -> float:
    """One convolution by the vendor's library as ONNX Runtime calls it, its changes of layout counted."""
    work = max(shape.flops / (device.vendor_tflops[compute] * device.conv_efficiency) * 1e-6, memory_us(device, nbytes))
    if shape.groups > 1 and shape.n == 1:
        return device.launch_us + VENDOR_DEPTHWISE_US + work
    return device.launch_us + device.conv_start_us + VENDOR_DEPTH_US * shape.k + work


def _fill(device: DeviceSpec, shape: GemmShape) -> float:
    """Share of the SMs that tiles of 128 x 128 occupy, split reductions counted as a fourfold."""
    tiles = math.ceil(shape.m / 128) * math.ceil(shape.n / 128) * shape.groups
    return min(1.0, 4 * max(1, tiles) / device.sms)
