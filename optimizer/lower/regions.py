"""Lowering of one region: stages to kernel specs, packed weights and a launch plan over the dims of the node's inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.view import Tensor
from ..launch import Arg, Expr, ExprLike, Launch, LaunchPlan, Output, align, arg_in, arg_out, arg_scratch, const, dim, expr
from ..plan.cost import ELEMENT_BYTES
from ..plan.regions.region import MAX_CONCAT_SOURCES, VECTOR_WIDTH, EpilogueOp, Region, Stage, padded
from ..plan.regions.tiles import Tile, copy_elements
from ..records import KernelSpec
from . import kernels
from .dims import Extent, input_extent, input_rows, stage_extent, window_padding
from .lowered import NCHW, NHWC, LoweredRegion, Packed, Port, StageWeights
from .pack import pack
from .render import kernel_name
from .rounding import balance

THREADS = 256
TENSOR_DTYPE = {"f16": "f16", "tf32": "f32"}

TileLadder = Sequence[tuple[int | None, Tile]]
ChooseTiles = Callable[[Stage, str], TileLadder]


@dataclass(frozen=True)
class Pointer:
    """An NHWC tensor on the device: where it lies, its channels' pitch in elements, its extent."""

    arg: Arg
    pitch: int
    extent: Extent


class _Lowering:
    def __init__(self, region: Region, inputs: Sequence[Port], outputs: Sequence[Port], flat: frozenset[Tensor], choose_tiles: ChooseTiles, pdl: bool) -> None:
        self.region, self.inputs, self.outputs, self.flat = region, tuple(inputs), tuple(outputs), flat
        self.choose_tiles, self.pdl = choose_tiles, pdl
        self.compute, self.bytes = region.compute, ELEMENT_BYTES[region.compute]
        self.type = kernels.element_type(region.compute)
        self.packed: list[Packed] = []
        self.scratch: list[Expr] = []
        self.specs: dict[str, KernelSpec] = {}
        self.launches: list[Launch] = []
        self.known: dict[Tensor, Pointer] = {}

    def run(self) -> LoweredRegion:
        for index, port in enumerate(self.inputs):
            self.known[port.tensor] = self.input_pointer(index, port)
        stages = self.region.stages
        extent = stage_extent(stages[0], self.known[stages[0].source].extent)
        result = self.result_pointer(extent)
        last = max(stages, key=lambda s: s.offset)
        weights = tuple(self.stage(s, result, s is last) for s in stages)
        self.finish_outputs(result)
        dims = {NHWC: self.nhwc_dims(extent), NCHW: self.nchw_dims(extent)}
        plan = LaunchPlan(
            tuple(Output(TENSOR_DTYPE[self.compute], dims[p.layout]) for p in self.outputs), tuple(self.scratch), tuple(self.specs), tuple(self.launches)
        )
        return LoweredRegion(self.region, self.inputs, tuple(self.packed), weights, self.outputs, plan, self.specs)

    # Tensors

    def nhwc_dims(self, extent: Extent) -> tuple[Expr, ...]:
        channels = const(padded(self.region.channels, self.compute))
        return (extent.n, extent.w, channels) if self.region.rank == 3 else (extent.n, extent.h, extent.w, channels)

    def nchw_dims(self, extent: Extent) -> tuple[Expr, ...]:
        channels = const(self.region.channels)
        if self.region.axis == -1:
            source = [p.tensor for p in self.inputs].index(self.region.stages[0].source)
            return (*(dim(source, axis) for axis in range(self.region.rank - 1)), channels)
        return (extent.n, channels, extent.w) if self.region.rank == 3 else (extent.n, channels, extent.h, extent.w)

    def new_scratch(self, nbytes: ExprLike) -> Arg:
        self.scratch.append(expr(nbytes))
        return arg_scratch(len(self.scratch) - 1)

    def nhwc_bytes(self, extent: Extent, channels: int) -> Expr:
        return extent.pixels * (padded(channels, self.compute) * self.bytes)

    def input_pointer(self, index: int, port: Port) -> Pointer:
        if self.region.axis == -1:
            return Pointer(arg_in(index), port.channels, input_rows(index, self.region.rank))
        extent = input_extent(index, port.layout, self.region.rank)
        pitch = padded(port.channels, self.compute)
        if port.layout == NHWC or self.is_flat(port):
            return Pointer(arg_in(index), pitch, extent)
        target = self.new_scratch(self.nhwc_bytes(extent, port.channels))
        self.layout(arg_in(index), target, extent, port.channels, to_nhwc=True)
        return Pointer(target, pitch, extent)

    def is_flat(self, port: Port) -> bool:
        """Whether the tensor has one pixel a sample and no padding channels, so that both layouts are the same bytes."""
        return port.tensor in self.flat and padded(port.channels, self.compute) == port.channels

    def result_pointer(self, extent: Extent) -> Pointer:
        if self.region.axis == -1:
            return Pointer(arg_out(0), self.region.channels, extent)
        pitch = padded(self.region.channels, self.compute)
        for index, port in enumerate(self.outputs):
            if port.layout == NHWC or self.is_flat(port):
                return Pointer(arg_out(index), pitch, extent)
        return Pointer(self.new_scratch(self.nhwc_bytes(extent, self.region.channels)), pitch, extent)

    def finish_outputs(self, result: Pointer) -> None:
        for index, port in enumerate(self.outputs):
            if port.layout == NCHW and result.arg != arg_out(index):
                self.layout(result.arg, arg_out(index), result.extent, port.channels, to_nhwc=False)

    # Launches

    def launch(self, template: str, params: dict[str, int | bool | str], values: dict[str, Arg | ExprLike], when: ExprLike = 1) -> None:
        spec = KernelSpec.of(template, params)
        name = str(spec)
        self.specs.setdefault(name, spec)
        image = list(self.specs).index(name)
        self.launches.append(kernels.launch(spec, image, kernel_name(spec), values, when=when, pdl=self.pdl))

    def layout(self, source: Arg, target: Arg, extent: Extent, channels: int, to_nhwc: bool) -> None:
        tile = 0 if channels <= 16 else 32 if channels <= 32 else 64
        params: dict[str, int | bool | str] = {"TYPE": self.type, "OTHER": self.type, "TO_NHWC": to_nhwc, "TILE_C": tile}
        pitch = padded(channels, self.compute)
        values: dict[str, Arg | ExprLike] = {
            "x": source,
            "y": target,
            "batch": extent.n,
            "h": extent.h,
            "w": extent.w,
            "channels": channels,
            "pitch": pitch,
            "offset": 0,
        }
        if to_nhwc:
            values["zero_to"] = pitch
        self.launch("layout", params, values)

    def lanes(self, channels: int) -> int:
        """Threads side by side along the channels: a power of two that covers them, at most 32."""
        units = -(-channels // VECTOR_WIDTH[self.compute])
        return min(32, 1 << max(units - 1, 0).bit_length())

    def weight(self, packed: Packed) -> tuple[int, Arg]:
        self.packed.append(packed)
        index = len(self.packed) - 1
        return index, arg_in(len(self.inputs) + index)

    def stage(self, stage: Stage, result: Pointer, last: bool) -> StageWeights:
        source = self.known[stage.source]
        values: dict[str, Arg | ExprLike] = {
            "x": source.arg,
            "x_pitch": source.pitch,
            "batch": source.extent.n,
            "y": result.arg,
            "y_pitch": result.pitch,
            "y_offset": stage.offset,
        }
        if last and self.region.axis == 1:
            values["y_zero_to"] = result.pitch
        ops, bias, vectors = self.epilogue(stage, values)
        weights = None
        if stage.kind == "conv":
            weights = self.conv(stage, source, result, values, ops)
        elif stage.kind == "matmul":
            weights = self.matmul(stage, result, values, ops)
        elif stage.kind.startswith("global"):
            self.global_pool(stage, source, values, ops)
        elif stage.kind == "concat":
            self.concat(stage, result, values, ops)
        elif stage.kind == "pointwise":
            lanes = self.lanes(stage.channels_out)
            values |= {"p": result.extent.h, "q": result.extent.w, "channels": stage.channels_out}
            self.launch("pointwise", {"TYPE": self.type, "LANES": lanes, "ROWS": 1, "THREADS": THREADS, "EPILOGUE": ops}, values)
        else:
            self.pool(stage, source, result, values, ops)
        return StageWeights(weights, bias, vectors)

    def epilogue(self, stage: Stage, values: dict[str, Arg | ExprLike]) -> tuple[str, int | None, tuple[int | None, ...]]:
        """The epilogue's C++ text; its operands go into ``values``."""
        ops, bias, vectors, slot = [], None, [], 0
        if stage.bias is not None:
            bias, values["bias"] = self.weight(Packed("bias", stage.bias, channels=stage.channels_out))
            ops.append(kernels.op("Bias"))
        for step in stage.epilogue:
            index = None
            if step.vector is not None:
                index, values[f"e{slot}"] = self.weight(Packed("vector", np.asarray(step.vector, dtype=np.float32), channels=stage.channels_out))
            elif step.tensor is not None:
                operand = self.known[step.tensor]
                values[f"e{slot}"], values[f"e{slot}_pitch"] = operand.arg, operand.pitch
            ops.append(_op_text(step, slot))
            slot += step.vector is not None or step.tensor is not None
            vectors.append(index)
        return kernels.epilogue(ops), bias, tuple(vectors)

    def conv(self, stage: Stage, source: Pointer, result: Pointer, values: dict[str, Arg | ExprLike], ops: str) -> int:
        window, weights = stage.window, stage.weights
        assert window is not None and weights is not None
        values |= {"h": source.extent.h, "w": source.extent.w, "p": result.extent.h, "q": result.extent.w}
        values |= {"kh": window.kernel[0], "kw": window.kernel[1], "stride_h": window.strides[0], "stride_w": window.strides[1]}
        values |= {"dil_h": window.dilations[0], "dil_w": window.dilations[1]}
        values |= {"pad_h": window_padding(window, 0, source.extent.h).begin, "pad_w": window_padding(window, 1, source.extent.w).begin}
        raw = np.asarray(weights.values)
        if stage.depthwise and stage.channels_out == stage.channels_in:
            pitch = padded(stage.channels_out, self.compute)
            index, values["weight"] = self.weight(Packed("weights", pack(raw, "hwo", pitch), weights, "hwo", stage.channels_out))
            self.depthwise(stage, values | {"channels": stage.channels_out, "w_pitch": pitch}, ops)
            return index
        inputs, outputs = stage.channels_in // stage.groups, stage.channels_out // stage.groups
        vector = copy_elements(stage, self.compute)
        depth = padded(inputs, self.compute) if stage.groups == 1 and vector is not None else inputs
        packed = pack(raw, "ohwi", depth)
        if vector is not None:
            packed = self.for_tensor_cores(packed)
        index, values["weight"] = self.weight(Packed("weights", packed, weights, "ohwi", inputs))
        values |= {"groups": stage.groups, "cin_g": depth, "cout_g": outputs}
        if vector is None:
            self.launch("conv_direct", {"TYPE": self.type, "LANES": self.lanes(stage.channels_out), "THREADS": THREADS, "EPILOGUE": ops}, values)
        else:
            self.igemm(stage, result, values, ops, vector)
        return index

    def for_tensor_cores(self, packed: np.ndarray) -> np.ndarray:
        """Weights by output, as tensor cores round them best."""
        return balance(packed.reshape(packed.shape[0], -1)).reshape(packed.shape) if self.compute == "tf32" else packed

    def matmul(self, stage: Stage, result: Pointer, values: dict[str, Arg | ExprLike], ops: str) -> int:
        """A product of rows by a constant matrix is a 1 x 1 convolution of images of one pixel."""
        assert stage.weights is not None
        raw = np.asarray(stage.weights.values)
        columns = raw if stage.nodes[0].attrs.get("transB", 0) else np.ascontiguousarray(raw.T)
        index, values["weight"] = self.weight(Packed("weights", self.for_tensor_cores(columns), stage.weights, "nk", stage.channels_in))
        values |= dict.fromkeys(("h", "w", "p", "q", "kh", "kw", "stride_h", "stride_w", "dil_h", "dil_w", "groups"), 1)
        values |= {"pad_h": 0, "pad_w": 0, "cin_g": stage.channels_in, "cout_g": stage.channels_out}
        vector = copy_elements(stage, self.compute)
        assert vector is not None
        self.igemm(stage, result, values, ops, vector)
        return index

    def depthwise(self, stage: Stage, values: dict[str, Arg | ExprLike], ops: str) -> None:
        window = stage.window
        assert window is not None
        baked = window.kernel[0] == window.kernel[1] and window.kernel[0] in (3, 5, 7) and window.strides[1] in (1, 2) and window.dilations == (1, 1)
        shape = (*window.kernel, window.strides[1], 1) if baked else (0, 0, 0, 0)
        params: dict[str, int | bool | str] = dict(zip(("KERNEL_H", "KERNEL_W", "STRIDE_W", "DILATION_W"), shape, strict=True))
        out_w = 2 if baked else 1
        self.launch(
            "conv_depthwise",
            {"TYPE": self.type, **params, "OUT_W": out_w, "LANES": self.lanes(stage.channels_out), "THREADS": THREADS, "EPILOGUE": ops},
            values,
        )

    def igemm(self, stage: Stage, result: Pointer, values: dict[str, Arg | ExprLike], ops: str, vector: int) -> None:
        matrix = stage.groups == 1 and (stage.window is None or stage.window.pointwise)
        below: int | None = None
        for limit, tile in self.choose_tiles(stage, self.compute):
            when: ExprLike = 1
            if limit is not None:
                when = result.extent.pixels.compare("<=", limit)
            if below is not None:
                above = result.extent.pixels.compare(">", below)
                when = above if limit is None else expr(when) * above
            below = limit
            self.igemm_launch(stage, result, dict(values), ops, vector, tile, matrix, when)

    def igemm_launch(
        self, stage: Stage, result: Pointer, values: dict[str, Arg | ExprLike], ops: str, vector: int, tile: Tile, matrix: bool, when: ExprLike
    ) -> None:
        params: dict[str, int | bool | str] = {
            "TYPE": self.type, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "WARPS_M": tile.warps_m, "WARPS_N": tile.warps_n,
            "STAGES": tile.stages, "VEC": vector, "POINTWISE": matrix, "SPLIT_K": tile.split_k,
        }  # fmt: skip
        if tile.split_k == 1:
            self.launch("conv_igemm", params | {"EPILOGUE": ops}, values, when)
            return
        pitch = padded(stage.channels_out, "tf32")
        workspace = self.new_scratch(expr(when) * align(result.extent.pixels * (pitch * 4 * tile.split_k), 256))
        partial = {k: v for k, v in values.items() if k != "bias" and not k.startswith("e")}
        self.launch("conv_igemm", params | {"EPILOGUE": kernels.epilogue()}, partial | {"workspace": workspace, "ws_pitch": pitch}, when)
        kept = ("bias", "y", "e0", "e1", "e2", "e0_pitch", "e1_pitch", "e2_pitch", "batch", "p", "q", "y_pitch", "y_offset", "y_zero_to")
        reduce = {k: values[k] for k in kept if k in values} | {"workspace": workspace, "ws_pitch": pitch, "channels": stage.channels_out}
        self.launch(
            "splitk_reduce",
            {"TYPE": self.type, "SPLIT_K": tile.split_k, "LANES": self.lanes(stage.channels_out), "THREADS": THREADS, "EPILOGUE": ops},
            reduce,
            when,
        )

    def concat(self, stage: Stage, result: Pointer, values: dict[str, Arg | ExprLike], ops: str) -> None:
        del values["x"], values["x_pitch"]
        for index in range(MAX_CONCAT_SOURCES):
            tensor, channels = stage.reads[index] if index < len(stage.reads) else (None, 0)
            pointer = self.known[tensor] if tensor is not None else None
            values[f"x{index}_pitch"], values[f"x{index}_channels"] = pointer.pitch if pointer is not None else 0, channels
            if pointer is not None:
                values[f"x{index}"] = pointer.arg
        values |= {"p": result.extent.h, "q": result.extent.w, "channels": stage.channels_out}
        params: dict[str, int | bool | str] = {"TYPE": self.type, "SOURCES": len(stage.reads), "LANES": self.lanes(stage.channels_out), "THREADS": THREADS}
        self.launch("concat", params | {"EPILOGUE": ops}, values)

    def pool(self, stage: Stage, source: Pointer, result: Pointer, values: dict[str, Arg | ExprLike], ops: str) -> None:
        window = stage.window
        assert window is not None
        kind = 0 if stage.kind == "max_pool" else 2 if window.count_include_pad else 1
        baked = window.kernel if window.kernel in ((2, 2), (3, 3)) else (0, 0)
        pads = [window_padding(window, axis, size) for axis, size in enumerate((source.extent.h, source.extent.w))]
        values |= {"h": source.extent.h, "w": source.extent.w, "p": result.extent.h, "q": result.extent.w, "channels": stage.channels_out}
        values |= {"kh": window.kernel[0], "kw": window.kernel[1], "stride_h": window.strides[0], "stride_w": window.strides[1]}
        values |= {"pad_h": pads[0].begin, "pad_w": pads[1].begin, "pad_end_h": pads[0].end, "pad_end_w": pads[1].end}
        values |= {"dil_h": window.dilations[0], "dil_w": window.dilations[1]}
        params: dict[str, int | bool | str] = {
            "TYPE": self.type,
            "KIND": kind,
            "KERNEL_H": baked[0],
            "KERNEL_W": baked[1],
            "LANES": self.lanes(stage.channels_out),
        }
        self.launch("pool", params | {"THREADS": THREADS, "EPILOGUE": ops}, values)

    def global_pool(self, stage: Stage, source: Pointer, values: dict[str, Arg | ExprLike], ops: str) -> None:
        values |= {"h": source.extent.h, "w": source.extent.w, "channels": stage.channels_out}
        maximum = stage.kind == "global_max_pool"
        lanes = min(8, self.lanes(stage.channels_out))
        self.launch("global_pool", {"TYPE": self.type, "MAXIMUM": maximum, "LANES": lanes, "THREADS": THREADS, "EPILOGUE": ops}, values)


def _op_text(step: EpilogueOp, slot: int) -> str:
    if step.kind == "act":
        assert step.activation is not None
        return kernels.activation_op(step.activation, slot)
    if step.kind == "affine":
        return kernels.op("Affine", step.a, step.b)
    if step.tensor is None:
        return kernels.op("ScaleVec" if step.kind == "scale" else "ShiftVec", slot)
    name = {"add": "Add", "mul": "Mul", "sub": "Sub", "rsub": "RSub"}[step.kind]
    return kernels.op(name + ("Gate" if step.gate else "Full"), slot)


def lower_region(
    region: Region, inputs: Sequence[Port], outputs: Sequence[Port], flat: frozenset[Tensor], choose_tiles: ChooseTiles, pdl: bool = True
) -> LoweredRegion:
    """Lowers ``region``.

    Args:
        inputs, outputs: Its activations with the layout in which they cross the node's border; outputs are all the region's result.
        flat: Tensors known to have one pixel a sample.
        choose_tiles: For a convolution stage and ``f16`` or ``tf32``, tiles by the most pixels that each is for.
        pdl: Whether launches may overlap their predecessors (programmatic dependent launch; every kernel waits before it reads).
    """
    return _Lowering(region, inputs, outputs, flat, choose_tiles, pdl).run()
