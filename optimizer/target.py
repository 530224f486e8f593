"""GPUs as data: what the planner and the compiler need to know of one, read from ``targets.toml`` and never from a device."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from .errors import UsageError


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU model.

    Attributes:
        name: Name as the driver prints it.
        arch: NVRTC architecture that uses all of it, e.g. ``sm_90a``.
        sms: Multiprocessors.
        smem_block: Largest shared memory of one block, bytes.
        l2_bytes: L2 size, bytes.
        dram_gbs, l2_gbs: Measured bandwidth, GB/s (read + write).
        mma_tflops: Rate of ``mma.sync`` by dtype name (``f16``, ``tf32``), TFLOP/s, dense.
        vendor_tflops: Rate that the vendor's library reaches on large problems, by dtype name, TFLOP/s.
        launch_us: One more kernel in a stream that the GPU works through without gaps, microseconds.
        node_us: One more node of ONNX Runtime's CUDA provider, microseconds of host time without a CUDA graph.
        vendor_floor_us: What a vendor matmul costs however small it is, microseconds.
        conv_start_us: What a convolution costs beside its work, as ONNX Runtime calls it.
        conv_efficiency: Share of ``vendor_tflops`` that convolutions reach in ONNX Runtime on large problems, its layout changes counted.
        dependent_launch_us: A small useful kernel behind another in a stream, its first loads and last stores counted, microseconds.
        wgmma_tflops: Rate of float16 ``wgmma`` by the n of the instruction (``n64``), TFLOP/s, dense; empty before Hopper.
        clusters: Clusters of 1, 2, 4 and 8 blocks that fit at one block an SM; empty where the GPU has none.
        cluster_barrier_us: One barrier of a cluster, microseconds.
        dsmem_gbs: Shared memory of another block of the cluster, GB/s an SM, by cluster size (2, 4, 8).
        handover_us: A flag from one block to another through the L2, microseconds.
    """

    name: str
    arch: str
    sms: int
    smem_block: int
    l2_bytes: int
    dram_gbs: float
    l2_gbs: float
    mma_tflops: dict[str, float]
    vendor_tflops: dict[str, float]
    launch_us: float
    node_us: float
    vendor_floor_us: float
    conv_start_us: float
    conv_efficiency: float
    dependent_launch_us: float
    handover_us: float
    wgmma_tflops: dict[str, float] = field(default_factory=dict)
    clusters: list[int] = field(default_factory=list)
    cluster_barrier_us: float = 0.0
    dsmem_gbs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TargetClass:
    """One family of images that a node can carry, and the GPUs that run it.

    Attributes:
        name: As given to ``--target``: ``portable``, ``sm_90a``, ...
        op_suffix: How it is spelled in op names: ``portable``, ``sm90a``.
        cubins: Architectures that are compiled to machine code.
        ptx: Virtual architecture whose PTX travels for GPUs yet to come, or ''.
    """

    name: str
    op_suffix: str
    cubins: tuple[str, ...]
    ptx: str


@cache
def _tables() -> dict[str, dict[str, dict[str, object]]]:
    return tomllib.loads(resources.files(__package__).joinpath("targets.toml").read_text())


@cache
def device(name: str) -> DeviceSpec:
    """The :class:`DeviceSpec` called ``name`` in ``targets.toml`` (``h200``, ``a100``, ...)."""
    try:
        return DeviceSpec(**_tables()["device"][name])  # type: ignore[arg-type]
    except KeyError:
        raise UsageError(f"unknown device {name!r}; known: {', '.join(sorted(_tables()['device']))}") from None


@cache
def target_class(name: str) -> TargetClass:
    """The :class:`TargetClass` called ``name``.

    Raises:
        UsageError: no such target; the text lists those that exist.
    """
    entry = _tables()["target"].get(name)
    if entry is None:
        raise UsageError(f"unsupported target {name!r}; supported: {', '.join(_tables()['target'])}, native")
    return TargetClass(name, name.replace("_", ""), tuple(entry["cubins"]), str(entry["ptx"]))  # type: ignore[arg-type]


def parse_targets(text: str, native_arch: str | None = None) -> tuple[TargetClass, ...]:
    """``sm_90a,portable`` as target classes, in the order given and without repeats.

    ``native`` stands for ``native_arch``, the architecture of the GPU at hand (``sm_90``).

    Raises:
        UsageError: unknown name, nothing given, or ``native`` without a GPU.
    """
    names: list[str] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name == "native":
            if native_arch is None:
                raise UsageError("target native: no GPU was found on this machine; name one, e.g. --target sm_90a")
            name = native_arch
        if name not in names:
            names.append(name)
    if not names:
        raise UsageError("--target is empty; give e.g. sm_90a,portable")
    return tuple(target_class(name) for name in names)


def device_for(classes: Iterable[TargetClass]) -> DeviceSpec:
    """The device that plans are priced for: the first one of ``targets.toml`` whose architecture is among ``classes``, else the default."""
    archs = {arch for c in classes if c.name != "portable" for arch in c.cubins}
    for name, entry in _tables()["device"].items():
        if entry["arch"] in archs:
            return device(name)
    return device("h200")
