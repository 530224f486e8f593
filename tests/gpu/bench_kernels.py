#!/usr/bin/env python3
"""Times every tile of conv_igemm, and conv_depthwise, on the layers of three networks, against PyTorch (cuDNN), and writes one JSON file.

A measurement is a CUDA graph of many launches over rotating buffers (so that operands come from DRAM where enough of them fit), timed by events;
ours and PyTorch's take turns, medians count. Convolutions carry a bias, ours a ReLU too. Layers that several models share are timed once.

    PYTHONPATH=src python3 tests/gpu/bench_kernels.py out.json [--models resnet50,...] [--batches 1,32] [--dtypes f16,tf32] [--no-torch] [--sets 1]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from gpu.codes import Codes  # noqa: E402
from gpu.conv_layers import MODELS, Layer, layers  # noqa: E402
from gpu.driver import Gpu, check, pack_args  # noqa: E402
from kernel_cases import TILES  # noqa: E402
from plans import Call, resolve  # noqa: E402
from tilewright.optimizer.jit.nvrtc import SMEM_LIMITS  # noqa: E402
from tilewright.optimizer.launch import LaunchPlan, arg_in, arg_out, arg_scratch  # noqa: E402
from tilewright.optimizer.lower import kernels  # noqa: E402
from tilewright.optimizer.lower.render import kernel_name  # noqa: E402
from tilewright.optimizer.records import KernelSpec  # noqa: E402

ELEMENT = {"f16": 2, "tf32": 4}
ROTATE_BYTES = 160 << 20  # two and a half times the L2 of an H200
MOST_SETS, FEWEST_LAUNCHES, MOST_LAUNCHES = 64, 4, 64
GRAPH_US = 800.0  # length of one graph, about
ROUNDS = 5
OVERLAPPED = 12  # fastest variants that are timed with programmatic dependent launch too
RELU = kernels.epilogue([kernels.op("Bias"), kernels.op("Relu")])


def align(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass
class Variant:
    """One way to compute a layer: its kernels, what identifies it in the result, and the times that were taken."""

    label: dict[str, Any]
    specs: list[KernelSpec]
    values: list[dict[str, Any]]
    workspace: int = 0
    us: list[float] = field(default_factory=list)
    pdl_us: list[float] = field(default_factory=list)
    calls: tuple[Call, ...] = ()


def layer_values(layer: Layer, batch: int, dtype: str) -> dict[str, Any]:
    unit = 16 // ELEMENT[dtype]
    x_pitch, y_pitch, pad = align(layer.cin, unit), align(layer.cout, unit), layer.kernel // 2
    values = {"x": arg_in(0), "weight": arg_in(1), "bias": arg_in(2), "y": arg_out(0), "batch": batch, "x_pitch": x_pitch, "y_pitch": y_pitch}
    values |= {"y_offset": 0, "y_zero_to": y_pitch, "h": layer.size, "w": layer.size, "p": layer.out, "q": layer.out, "kh": layer.kernel, "kw": layer.kernel}
    return values | {"stride_h": layer.stride, "stride_w": layer.stride, "pad_h": pad, "pad_w": pad, "dil_h": 1, "dil_w": 1}


def igemm_variants(layer: Layer, batch: int, dtype: str, smem_limit: int) -> Iterator[Variant]:
    size, unit = ELEMENT[dtype], 16 // ELEMENT[dtype]
    rows, pointwise = batch * layer.out**2, layer.kernel == 1 and layer.stride == 1
    narrow = min(align(layer.cout, 32), 256)
    for block_m, block_n, row_bytes, warps_m, warps_n, stages in TILES:
        if (block_n > 32 and block_n // 2 >= narrow) or (block_m > 16 and block_m // 2 >= rows):
            continue
        if stages * (block_m + block_n) * row_bytes > smem_limit:
            continue
        for vec in (unit, unit // 2) if layer.cin == 3 and block_m * block_n // (warps_m * warps_n) <= 2048 else (unit,):
            depth = align(layer.cin, vec)
            steps = -(-(layer.kernel**2) * depth // (row_bytes // size))
            blocks = -(-rows // block_m) * -(-layer.cout // block_n)
            for split in (1, 2, 4, 8):
                if split > 1 and (blocks * split > 264 or steps < 2 * split or vec < unit):
                    continue
                params = {"TYPE": kernels.element_type(dtype), "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": row_bytes // size}
                params |= {"WARPS_M": warps_m, "WARPS_N": warps_n, "STAGES": stages, "VEC": vec, "POINTWISE": pointwise, "SPLIT_K": split}
                values = layer_values(layer, batch, dtype) | {"groups": 1, "cin_g": depth, "cout_g": layer.cout}
                label = {"tile": [block_m, block_n, row_bytes // size, warps_m, warps_n, stages], "vec": vec, "split_k": split, "blocks": blocks * split}
                if split == 1:
                    yield Variant(label, [KernelSpec.of("conv_igemm", {**params, "EPILOGUE": RELU})], [values])
                    continue
                pitch = align(layer.cout, 4)
                split_values = {k: v for k, v in values.items() if k not in ("bias", "y")} | {"workspace": arg_scratch(0), "ws_pitch": pitch}
                keep = ("bias", "y", "batch", "p", "q", "y_pitch", "y_offset", "y_zero_to")
                reduce = {k: values[k] for k in keep} | {"workspace": arg_scratch(0), "ws_pitch": pitch, "channels": layer.cout}
                lanes = min(32, align(layer.cout, unit) // unit)
                lanes = 1 << (lanes - 1).bit_length()
                second = {"TYPE": params["TYPE"], "SPLIT_K": split, "LANES": lanes, "THREADS": 128, "EPILOGUE": RELU}
                specs = [KernelSpec.of("conv_igemm", {**params, "EPILOGUE": kernels.epilogue()}), KernelSpec.of("splitk_reduce", second)]
                yield Variant(label, specs, [split_values, reduce], 4 * split * rows * pitch)


def depthwise_variants(layer: Layer, batch: int, dtype: str) -> Iterator[Variant]:
    unit = 16 // ELEMENT[dtype]
    values = layer_values(layer, batch, dtype) | {"channels": layer.cout, "w_pitch": align(layer.cout, unit)}
    for out_w in (1, 2, 4):
        for lanes in (4, 8, 16, 32):
            for threads in (128, 256):
                params = {"TYPE": kernels.element_type(dtype), "KERNEL_H": layer.kernel, "KERNEL_W": layer.kernel, "STRIDE_W": layer.stride, "DILATION_W": 1}
                label = {"out_w": out_w, "lanes": lanes, "threads": threads}
                spec = KernelSpec.of("conv_depthwise", {**params, "OUT_W": out_w, "LANES": lanes, "THREADS": threads, "EPILOGUE": RELU})
                yield Variant(label, [spec], [values])


def variants(layer: Layer, batch: int, dtype: str, smem_limit: int) -> list[Variant]:
    """Every variant of ``layer`` that is worth a measurement."""
    found = list(depthwise_variants(layer, batch, dtype) if layer.groups > 1 else igemm_variants(layer, batch, dtype, smem_limit))
    for variant in found:
        names = {str(spec): spec for spec in variant.specs}
        launches = [kernels.launch(s, i, kernel_name(s), v) for i, (s, v) in enumerate(zip(variant.specs, variant.values, strict=True))]
        variant.calls = resolve(LaunchPlan((), (), tuple(names), tuple(launches)), names, []).calls
    return found


class Buffers:
    """Rotating sets of x, weights and y in one allocation."""

    def __init__(self, gpu: Gpu, layer: Layer, batch: int, dtype: str, workspace: int, most_sets: int) -> None:
        size, unit = ELEMENT[dtype], 16 // ELEMENT[dtype]
        depth = align(layer.cin, unit) if layer.groups == 1 else 1
        x = batch * layer.size**2 * align(layer.cin, unit) * size
        weight = align(layer.cout, unit) * layer.kernel**2 * depth * size
        y = batch * layer.out**2 * align(layer.cout, unit) * size
        parts = [align(part, 256) for part in (x, weight, 4 * align(layer.cout, 4), y)]
        self.gpu, self.stride = gpu, sum(parts)
        self.sets = max(1, min(most_sets, -(-ROTATE_BYTES // (x + weight + y))))
        self.offsets = dict(zip((("in", 0), ("in", 1), ("in", 2), ("out", 0)), np.cumsum([0, *parts[:3]]).tolist(), strict=True))
        self.workspace_at = self.sets * self.stride
        total = self.workspace_at + align(workspace, 256)
        self.base = int(check(gpu.cu.cuMemAlloc(total)))
        noise = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16 if dtype == "f16" else np.float32)
        for start in range(0, self.workspace_at, noise.nbytes):
            check(gpu.cu.cuMemcpyHtoD(self.base + start, noise.ctypes.data, min(noise.nbytes, self.workspace_at - start)))

    def pointers(self, turn: int) -> dict[tuple[str, int], int]:
        """Addresses for launch number ``turn``."""
        start = self.base + turn % self.sets * self.stride
        return {name: start + offset for name, offset in self.offsets.items()} | {("ws", 0): self.base + self.workspace_at}

    def free(self) -> None:
        """Gives the memory back."""
        check(self.gpu.cu.cuMemFree(self.base))


class TorchConv:
    """PyTorch's convolution of a layer, channels last, as a CUDA graph over rotating tensors."""

    def __init__(self, layer: Layer, batch: int, dtype: str, sets: int) -> None:
        import torch
        import torch.nn.functional as functional

        self.torch = torch
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        kind = torch.float16 if dtype == "f16" else torch.float32
        last = {"memory_format": torch.channels_last}
        x = [torch.randn(batch, layer.cin, layer.size, layer.size, device="cuda", dtype=kind).contiguous(**last) for _ in range(sets)]
        shape = (layer.cout, layer.cin // layer.groups, layer.kernel, layer.kernel)
        weight = [torch.randn(*shape, device="cuda", dtype=kind).contiguous(**last) for _ in range(sets)]
        bias = torch.randn(layer.cout, device="cuda", dtype=kind)

        def run(turn: int) -> None:
            functional.conv2d(x[turn % sets], weight[turn % sets], bias, layer.stride, layer.kernel // 2, 1, layer.groups)

        with torch.no_grad():
            for turn in range(3):
                run(turn)
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for turn in range(4):
                run(turn)
            end.record()
            torch.cuda.synchronize()
            self.launches = launches_for(1e3 * begin.elapsed_time(end) / 4)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for turn in range(self.launches):
                    run(turn)
        self.begin, self.end = begin, end
        self.us: list[float] = []
        self.measure()
        self.us.clear()

    def measure(self) -> None:
        """Takes one time."""
        self.begin.record()
        self.graph.replay()
        self.end.record()
        self.torch.cuda.synchronize()
        self.us.append(1e3 * self.begin.elapsed_time(self.end) / self.launches)


def launches_for(us: float) -> int:
    return int(max(FEWEST_LAUNCHES, min(MOST_LAUNCHES, GRAPH_US / max(us, 0.5))))


def measure_layer(gpu: Gpu, codes: Codes, job: tuple[str, int, Layer], found: list[Variant], with_torch: bool, most_sets: int) -> dict[str, Any]:
    """All variants of a layer and PyTorch, in turns."""
    dtype, batch, layer = job
    buffers = Buffers(gpu, layer, batch, dtype, max((v.workspace for v in found), default=0), most_sets)
    peer = TorchConv(layer, batch, dtype, buffers.sets) if with_torch else None

    def graph(variant: Variant, count: int, pdl: bool) -> Any:
        functions = [gpu.function(codes[call.spec], call.kernel, call.smem) for call in variant.calls]
        launches = []
        for turn in range(count):
            pointers = buffers.pointers(turn)
            launches += [(call, function, pack_args(call, pointers)) for call, function in zip(variant.calls, functions, strict=True)]
        return gpu.capture(launches, pdl)

    graphs: list[tuple[Variant, int, Any, list[float]]] = []
    try:
        for variant in found:
            probe = graph(variant, 4, False)
            gpu.time_graph(probe)
            count = launches_for(gpu.time_graph(probe) / 4)
            gpu.free_graph(probe)
            graphs.append((variant, count, graph(variant, count, False), variant.us))
        for _ in range(ROUNDS):
            for _, count, executable, times in graphs:
                times.append(gpu.time_graph(executable) / count)
            if peer is not None:
                peer.measure()
        best = sorted(found, key=lambda v: statistics.median(v.us))[:OVERLAPPED]
        early = [(v, c, graph(v, c, True), v.pdl_us) for v, c, _, _ in graphs if v in best]
        graphs += early
        for _ in range(ROUNDS):
            for _, count, executable, times in early:
                times.append(gpu.time_graph(executable) / count)
    finally:
        for _, _, executable, _ in graphs:
            gpu.free_graph(executable)
        buffers.free()
    flops = layer.flops(batch)
    rows = [
        {**v.label, "us": round(statistics.median(v.us), 3), "tflops": round(flops / statistics.median(v.us) * 1e-6, 2)}
        | ({"pdl_us": round(statistics.median(v.pdl_us), 3)} if v.pdl_us else {})
        for v in found
    ]
    rows.sort(key=lambda row: row["us"])
    result: dict[str, Any] = {"ours_us": rows[0]["us"], "torch_us": None, "sets": buffers.sets, "variants": rows}
    if peer is not None:
        result["torch_us"] = round(statistics.median(peer.us), 3)
        result["ratio"] = round(result["torch_us"] / rows[0]["us"], 3)
    return result


def command_output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--dtypes", default="f16,tf32")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--seconds", type=float, default=400.0, help="stop measuring after so long, and write what there is")
    parser.add_argument("--sets", type=int, default=MOST_SETS, help="most sets of buffers to rotate over; 1 leaves operands in L2")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/tilewright-bench"))
    options = parser.parse_args()

    start = time.perf_counter()
    gpu = Gpu()
    codes = Codes(gpu.arch, options.cache)
    smem_limit = SMEM_LIMITS[10 * gpu.capability[0] + gpu.capability[1]]
    uses: dict[Layer, dict[str, int]] = {}
    for model in options.models.split(","):
        for layer, count in layers(model).items():
            uses.setdefault(layer, {})[model] = count
    jobs = [(d, int(b), layer) for d in options.dtypes.split(",") for b in options.batches.split(",") for layer in uses]
    found = {job: variants(job[2], job[1], job[0], smem_limit) for job in jobs}
    failed = codes.compile_ahead(spec for vs in found.values() for v in vs for spec in v.specs)
    print(f"{len(codes)} kernels in {time.perf_counter() - start:.0f} s, {sum(map(len, found.values()))} variants of {len(jobs)} layers", *failed, sep="\n")

    rows: list[dict[str, Any]] = []
    versions = {"python": platform.python_version(), "driver": command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")}
    if not options.no_torch:
        import torch

        versions |= {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    name = check(gpu.cu.cuDeviceGetName(100, gpu.device))
    report = {
        "bench": "conv_layer", "machine": {"gpu": name.decode().rstrip("\0"), "sms": gpu.sms}, "versions": versions,
        "commit": command_output("git", "rev-parse", "HEAD"), "command": " ".join(sys.argv), "rows": rows,
    }  # fmt: skip
    for job in jobs:
        if time.perf_counter() - start > options.seconds:
            print(f"out of time after {len(rows)} of {len(jobs)} layers")
            break
        dtype, batch, layer = job
        usable = [v for v in found[job] if all(spec in codes for spec in v.specs)]
        if not usable:
            continue
        try:
            row = measure_layer(gpu, codes, job, usable, not options.no_torch, options.sets)
        except Exception as error:
            print(f"{dtype} {batch} {layer}: {type(error).__name__}: {error}")
            if isinstance(error, RuntimeError) and "driver" in str(error):
                break  # the context is lost
            continue
        head = {"bench": "conv_layer", "models": uses[layer], "layer": str(layer), "batch": batch, "precision": dtype}
        shape = {"cin": layer.cin, "cout": layer.cout, "size": layer.size, "kernel": layer.kernel, "stride": layer.stride, "groups": layer.groups}
        rows.append({**head, "shape": shape, "graph": True, **row})
        best = row["variants"][0]
        line = f"{dtype:4} {batch:3} {layer!s:24} {row['ours_us']:8.2f} us {best['tflops']:7.1f} TFLOP/s"
        print(line, f"x{row['ratio']:.2f}" if "ratio" in row else "", {k: v for k, v in best.items() if k not in ("us", "tflops")}, flush=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
