"""Seeded kernel cases: launch plans of one or two launches with their inputs, for the CPU emulator (small) and for GPUs.

A :class:`Case` is made from its seed and kind only when :meth:`Case.make` is called, so that a list of hundreds costs nothing. Conv, pool and the
rest share one way to make x, operands and y: pitches wider than needed, channel offsets as in a concat, padding channels to be zeroed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from plan_builder import ACTIVATIONS, DTYPE, OTHER_OPS, TENSOR, UNIT, Made, Plan
from tilewright.optimizer.launch import Output, arg_out, arg_scratch, const, dim
from tilewright.optimizer.lower import kernels

# BLOCK_M, BLOCK_N, bytes of a row of BLOCK_K, WARPS_M, WARPS_N, STAGES
TILES = (
    (128, 128, 128, 4, 2, 3), (128, 128, 64, 2, 2, 4), (256, 128, 64, 4, 2, 4), (128, 256, 64, 2, 4, 4), (256, 128, 128, 4, 2, 3),
    (128, 128, 64, 4, 2, 5), (128, 64, 128, 4, 1, 3), (128, 64, 64, 2, 2, 4), (64, 128, 128, 2, 2, 3), (64, 64, 128, 2, 2, 4), (64, 64, 64, 2, 2, 3),
    (128, 32, 128, 4, 1, 4), (64, 32, 128, 2, 1, 4), (64, 32, 64, 4, 1, 2), (32, 64, 128, 2, 2, 4), (32, 32, 128, 2, 1, 5), (16, 64, 128, 1, 2, 5),
    (16, 32, 128, 1, 1, 5), (16, 128, 128, 1, 4, 4), (128, 64, 128, 4, 2, 2), (64, 128, 128, 2, 4, 2), (64, 64, 128, 2, 2, 2), (128, 128, 128, 4, 2, 2),
    (64, 64, 128, 2, 2, 6), (64, 32, 128, 2, 1, 8), (32, 64, 128, 2, 2, 8), (32, 32, 128, 2, 1, 8), (16, 64, 128, 1, 2, 8), (16, 32, 128, 1, 1, 8),
)  # fmt: skip
SMALL_COPY_TILES = tuple(t for t in TILES if t[0] * t[1] // (t[3] * t[4]) <= 64 * 32)


EPILOGUES = (
    (), ("Bias",), ("Bias", "relu"), ("Bias", "relu", "AddFull"), ("Bias", "AddFull", "relu"), ("Bias", "silu", "MulGate"),
    ("Bias", "ScaleVec", "ShiftVec", "clip"), ("Bias", "hard_swish", "AddGate", "MulFull"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One case; ``small`` ones suit the emulator."""

    name: str
    maker: Callable[[Case, np.random.Generator], Made]
    seed: int
    small: bool
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.name

    def make(self) -> Made:
        return self.maker(self, np.random.default_rng(self.seed))

    def __getitem__(self, option: str) -> Any:
        return dict(self.options)[option]

    def get(self, option: str, default: Any = None) -> Any:
        return dict(self.options).get(option, default)


@dataclass(frozen=True)
class Window:
    """Spatial sizes of a convolution or pooling."""

    h: int
    w: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    p: int
    q: int

    def values(self) -> dict[str, int]:
        names = ("h", "w", "kh", "kw", "stride_h", "stride_w", "pad_h", "pad_w", "dil_h", "dil_w", "p", "q")
        return dict(zip(names, (self.h, self.w, *self.kernel, *self.stride, *self.pads[:2], *self.dilation, self.p, self.q), strict=True))


def window(rng: np.random.Generator, small: bool, kernel: tuple[int, int] | None = None, stride: tuple[int, int] | None = None, plain: bool = False) -> Window:
    """A random window that gives at least one output; ``plain``: dilation 1."""
    while True:
        h, w = (int(v) for v in rng.integers(1, 9 if small else 40, 2))
        k = kernel or tuple(int(v) for v in rng.choice([1, 1, 2, 3, 3, 3, 4, 5, 7], 2))
        if kernel is None and rng.random() < 0.15:
            k, h = (1, int(rng.integers(2, 10))), 1
        s = stride or tuple(int(v) for v in rng.choice([1, 1, 2, 3], 2))
        d = (1, 1) if plain or rng.random() < 0.6 else tuple(int(v) for v in rng.integers(1, 4, 2))
        pads = tuple(int(rng.integers(0, k[i % 2] + 1)) for i in range(4))
        p, q = ((size + pads[i] + pads[i + 2] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i, size in enumerate((h, w)))
        if p > 0 and q > 0:
            return Window(h, w, k, s, pads, d, p, q)


def _batch(case: Case, rng: np.random.Generator) -> int:
    return int(rng.integers(1, 4 if case.small else 9))


def _concat(case: Case, rng: np.random.Generator) -> str:
    return case.get("concat") or str(rng.choice(["none", "none", "inside", "odd"]))


def _lanes(rng: np.random.Generator, channels: int, unit: int) -> int:
    units = -(-channels // unit)
    return min(int(rng.choice([1, 4, 8, 16, 32])), 1 << max(units - 1, 0).bit_length())


def make_conv(case: Case, rng: np.random.Generator) -> Made:
    """conv_igemm or conv_direct, with splitk_reduce where the reduction is split. Options: tile, split, pointwise, vec, groups, channels, epilogue, direct."""
    dtype, direct = case["dtype"], case.get("direct", False)
    plan = Plan(dtype, rng)
    unit, pointwise, split = UNIT[dtype], case.get("pointwise", False), case.get("split", 1)
    n, groups = _batch(case, rng), case.get("groups", 1)
    if pointwise:
        h, w = (int(v) for v in rng.integers(1, 7 if case.small else 40, 2))
        place = Window(h, w, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), h, w)
    else:
        place = window(rng, case.small, case.get("kernel"))
    vec = case.get("vec", unit)
    limit = 40 if case.small else 200
    inputs, outputs = case.get("channels") or (int(rng.integers(1, limit)), int(rng.integers(1, limit)))
    if groups > 1:
        inputs = inputs if direct else -(-inputs // vec) * vec
        depth = inputs
    else:
        depth = inputs if direct else -(-inputs // vec) * vec
    weight = np.zeros((groups * outputs, *place.kernel, depth), DTYPE[dtype])
    scale = 1 / np.sqrt(inputs * place.kernel[0] * place.kernel[1])
    weight[..., :inputs] = rng.standard_normal((groups * outputs, *place.kernel, inputs)) * scale
    tight = _concat(case, rng) == "none"
    x, x_pitch = plan.tensor(n * place.h * place.w, groups * inputs, tight)
    rows, channels = n * place.p * place.q, groups * outputs
    ops, operands = plan.epilogue(case.get("epilogue", EPILOGUES[int(rng.integers(len(EPILOGUES)))]), rows, n, channels, tight)
    y = plan.result((n, place.p, place.q), channels, _concat(case, rng))
    values = {"x": x, "x_pitch": x_pitch, "weight": plan.input(weight), "batch": n, "groups": groups, "cin_g": depth, "cout_g": outputs, **place.values()}
    params: dict[str, Any] = {"TYPE": kernels.element_type(dtype)}
    if direct:
        plan.launch("conv_direct", params | {"LANES": _lanes(rng, channels, unit), "THREADS": 128, "EPILOGUE": ops}, {**values, **operands, **y})
        return plan.done()
    block_m, block_n, row_bytes, warps_m, warps_n, stages = case["tile"]
    params |= {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": row_bytes // np.dtype(DTYPE[dtype]).itemsize, "WARPS_M": warps_m, "WARPS_N": warps_n}
    params |= {"STAGES": stages, "VEC": vec, "POINTWISE": pointwise, "SPLIT_K": split}
    if split == 1:
        plan.launch("conv_igemm", params | {"EPILOGUE": ops}, {**values, **operands, **y})
        return plan.done()
    ws_pitch = -(-outputs // 4) * 4
    plan.scratch.append(4 * split * rows * ws_pitch)
    workspace = {"workspace": arg_scratch(0), "ws_pitch": ws_pitch}
    plan.launch("conv_igemm", params | {"EPILOGUE": kernels.epilogue()}, {**values, **y, **workspace})
    reduce = {"TYPE": params["TYPE"], "SPLIT_K": split, "LANES": _lanes(rng, outputs, unit), "THREADS": 128, "EPILOGUE": ops}
    plan.launch("splitk_reduce", reduce, {"batch": n, "p": place.p, "q": place.q, "channels": outputs, **workspace, **operands, **y}, pdl=True)
    return plan.done()


def make_depthwise(case: Case, rng: np.random.Generator) -> Made:
    """conv_depthwise. Options: baked (kernel, stride, dilation) or none, out_w."""
    dtype = case["dtype"]
    plan = Plan(dtype, rng)
    unit, n, baked = UNIT[dtype], _batch(case, rng), case.get("baked")
    channels = int(rng.integers(1, 40 if case.small else 300))
    if baked:
        kernel, stride, dilation = baked
        while True:
            place = window(rng, case.small, (kernel, kernel), (int(rng.integers(1, 3)), stride), plain=True)
            reach = [d * (kernel - 1) + 1 for d in (1, dilation)]
            p, q = ((size + place.pads[i] + place.pads[i + 2] - reach[i]) // place.stride[i] + 1 for i, size in enumerate((place.h, place.w)))
            if p > 0 and q > 0:
                break
        place = Window(place.h, place.w, place.kernel, place.stride, place.pads, (1, dilation), p, q)
        shape = (kernel, kernel, stride, dilation)
    else:
        place, shape = window(rng, case.small), (0, 0, 0, 0)
    pitch = -(-channels // unit) * unit
    weight = np.zeros((place.kernel[0] * place.kernel[1], pitch), DTYPE[dtype])
    weight[:, :channels] = rng.standard_normal((weight.shape[0], channels)) / np.sqrt(weight.shape[0])
    concat = _concat(case, rng)
    x, x_pitch = plan.tensor(n * place.h * place.w, channels, concat == "none")
    ops, operands = plan.epilogue(case.get("epilogue", EPILOGUES[int(rng.integers(len(EPILOGUES)))]), n * place.p * place.q, n, channels, concat == "none")
    y = plan.result((n, place.p, place.q), channels, concat)
    params = {"TYPE": kernels.element_type(dtype), **dict(zip(("KERNEL_H", "KERNEL_W", "STRIDE_W", "DILATION_W"), shape, strict=True))}
    params |= {"OUT_W": case["out_w"], "LANES": _lanes(rng, channels, unit), "THREADS": 128, "EPILOGUE": ops}
    values = {"x": x, "x_pitch": x_pitch, "weight": plan.input(weight), "w_pitch": pitch, "batch": n, "channels": channels, **place.values()}
    plan.launch("conv_depthwise", params, {**values, **operands, **y})
    return plan.done()


def make_pool(case: Case, rng: np.random.Generator) -> Made:
    """pool. Options: kind, baked kernel or none."""
    dtype = case["dtype"]
    plan = Plan(dtype, rng)
    unit, n, baked = UNIT[dtype], _batch(case, rng), case.get("baked")
    channels = int(rng.integers(1, 40 if case.small else 300))
    place = window(rng, case.small, baked)
    if rng.random() < 0.5:  # ceil_mode: the last window may reach beyond the padding
        p, q = (max(1, place.p), max(1, place.q))
        place = Window(place.h, place.w, place.kernel, place.stride, place.pads, place.dilation, p + 1, q + 1)
    concat = _concat(case, rng)
    x, x_pitch = plan.tensor(n * place.h * place.w, channels, concat == "none")
    ops, operands = plan.epilogue(case.get("epilogue", ()), n * place.p * place.q, n, channels, concat == "none")
    y = plan.result((n, place.p, place.q), channels, concat)
    params = {"TYPE": kernels.element_type(dtype), "KIND": case["kind"], "KERNEL_H": baked[0] if baked else 0, "KERNEL_W": baked[1] if baked else 0}
    params |= {"LANES": _lanes(rng, channels, unit), "THREADS": 128, "EPILOGUE": ops}
    values = {"x": x, "x_pitch": x_pitch, "batch": n, "channels": channels, **place.values(), "pad_end_h": place.pads[2], "pad_end_w": place.pads[3]}
    plan.launch("pool", params, {**values, **operands, **y})
    return plan.done()


def make_global_pool(case: Case, rng: np.random.Generator) -> Made:
    """global_pool. Options: maximum, pixels."""
    dtype = case["dtype"]
    plan = Plan(dtype, rng)
    n, channels = _batch(case, rng), int(rng.integers(1, 60 if case.small else 600))
    h, w = case["pixels"]
    x, x_pitch = plan.tensor(n * h * w, channels, False)
    ops, operands = plan.epilogue(case.get("epilogue", ()), n, n, channels, False)
    y = plan.result((n, 1, 1), channels, _concat(case, rng))
    params = {"TYPE": kernels.element_type(dtype), "MAXIMUM": case["maximum"], "LANES": int(rng.choice([1, 4, 8])), "THREADS": 128, "EPILOGUE": ops}
    plan.launch("global_pool", params, {"x": x, "x_pitch": x_pitch, "batch": n, "h": h, "w": w, "channels": channels, **operands, **y})
    return plan.done()


def make_pointwise(case: Case, rng: np.random.Generator) -> Made:
    """pointwise, its batch read from the input's dims at run time. Options: epilogue, special (NaN and infinity among the values)."""
    dtype = case["dtype"]
    plan = Plan(dtype, rng)
    n, channels = _batch(case, rng), int(rng.integers(1, 40 if case.small else 300))
    p, q = (int(v) for v in rng.integers(1, 8 if case.small else 30, 2))
    x, x_pitch = plan.tensor(n * p * q, channels, False, 2.0)
    data = plan.inputs[x.index]
    if case.get("special"):
        places = rng.random(data.shape) < 0.2
        data[places & np.isfinite(data)] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 80.0, -80.0], int((places & np.isfinite(data)).sum()))
    plan.inputs[x.index] = data.reshape(n, p * q, x_pitch)
    ops, operands = plan.epilogue(case["epilogue"], n * p * q, n, channels, False)
    y = plan.result((dim(x.index, 0), p, q), channels, _concat(case, rng))
    params = {"TYPE": kernels.element_type(dtype), "LANES": _lanes(rng, channels, UNIT[dtype]), "ROWS": int(rng.choice([1, 2, 4])), "THREADS": 128}
    values = {"x": x, "x_pitch": x_pitch, "batch": dim(x.index, 0), "p": p, "q": q, "channels": channels, **operands, **y}
    plan.launch("pointwise", params | {"EPILOGUE": ops}, values)
    return plan.done()


def make_concat(case: Case, rng: np.random.Generator) -> Made:
    """concat. Options: sources, epilogue."""
    dtype, sources = case["dtype"], case["sources"]
    plan = Plan(dtype, rng)
    n, (p, q) = _batch(case, rng), (int(v) for v in rng.integers(1, 8 if case.small else 30, 2))
    values: dict[str, Any] = {"batch": n, "p": p, "q": q}
    total = 0
    for i in range(8):
        channels = 0 if i >= sources else int(rng.integers(1, 30)) if rng.random() < 0.5 else UNIT[dtype] * int(rng.integers(1, 5))
        values |= {f"x{i}_pitch": 0, f"x{i}_channels": channels}
        if channels:
            values[f"x{i}"], values[f"x{i}_pitch"] = plan.tensor(n * p * q, channels, False)
        total += channels
    ops, operands = plan.epilogue(case["epilogue"], n * p * q, n, total, False)
    y = plan.result((n, p, q), total, _concat(case, rng))
    params = {"TYPE": kernels.element_type(dtype), "SOURCES": sources, "LANES": _lanes(rng, total, UNIT[dtype]), "THREADS": 128, "EPILOGUE": ops}
    plan.launch("concat", params, {**values, "channels": total, **operands, **y})
    return plan.done()


def make_layout(case: Case, rng: np.random.Generator) -> Made:
    """layout. Options: other (dtype of the NCHW tensor), to_nhwc, tile."""
    dtype, other, tile = case["dtype"], case["other"], case["tile"]
    plan = Plan(dtype, rng)
    n, (h, w) = _batch(case, rng), (int(v) for v in rng.integers(1, 20 if case.small else 60, 2))
    channels = int(rng.integers(1, 20 if not tile else 150))
    unit = UNIT[dtype]
    params = {"TYPE": kernels.element_type(dtype), "OTHER": kernels.element_type(other), "TO_NHWC": case["to_nhwc"], "TILE_C": tile}
    values: dict[str, Any] = {"batch": n, "h": h, "w": w, "channels": channels}
    if case["to_nhwc"]:
        x = plan.input(rng.standard_normal((n, channels, h, w)).astype(DTYPE[other]))
        y = plan.result((n, h, w), channels, _concat(case, rng))
        values |= {"x": x, "y": y["y"], "pitch": y["y_pitch"], "offset": y["y_offset"], "zero_to": y["y_zero_to"]}
    else:
        x, pitch = plan.tensor(n * h * w, channels, False)
        skip = int(rng.integers(0, unit)) if channels > unit else 0
        plan.outputs.append(Output(TENSOR[other], tuple(map(const, (n, channels - skip, h, w)))))
        values |= {"x": x, "y": arg_out(0), "pitch": pitch, "offset": skip, "channels": channels - skip}
    plan.launch("layout", params, values)
    return plan.done()


def cases(small: bool, repeat: int = 1, first_seed: int = 0) -> Iterator[Case]:
    """Every kind of case; ``repeat`` times as many of the random ones."""
    count = first_seed

    def case(family: str, maker: Callable[[Case, np.random.Generator], Made], **options: Any) -> Case:
        nonlocal count
        count += 1
        return Case(f"{family}-{options['dtype']}-{count}{'s' * small}", maker, count, small, tuple(options.items()))

    for dtype in ("f16", "tf32"):
        unit = UNIT[dtype]
        for tile in TILES:
            for pointwise in (True, False):
                for split in (1, 4):
                    yield case("tile", make_conv, dtype=dtype, tile=tile, pointwise=pointwise, split=split, kernel=None if pointwise else (3, 3))
        for i in range(80 * repeat):
            split = (1, 1, 1, 2, 8)[i % 5]
            yield case("conv", make_conv, dtype=dtype, tile=TILES[(5 * i + 3) % len(TILES)], split=split, pointwise=i % 4 == 0)
        for channels in ((1, 1), (3, 64), (64, 3), (3, 515), (515, 5), (17, 17), (130, 257)):
            if not small or max(channels) < 100:
                yield case("channels", make_conv, dtype=dtype, tile=TILES[9], channels=channels, vec=unit)
                yield case("channels", make_conv, dtype=dtype, tile=TILES[9], channels=channels, vec=unit // 2, kernel=(7, 7))
        grouped = [(1, 2, (16, 24)), (1, 3, (8, 7)), (2, 4, (4, 8)), (2, 2, (12, 10)), (4, 5, (2, 9)), (4, 1, (9, 33)), (1, 32, (8, 8))]
        for i, (part, groups, channels) in enumerate(grouped):
            for tile in (SMALL_COPY_TILES[i % len(SMALL_COPY_TILES)], SMALL_COPY_TILES[(i + 5) % len(SMALL_COPY_TILES)]):
                yield case("groups", make_conv, dtype=dtype, tile=tile, vec=unit // part, groups=groups, channels=channels)
        for i in range(12 * repeat):
            groups, channels = [(1, (3, 5)), (3, (5, 3)), (7, (1, 2)), (4, (3, 1)), (1, (17, 9)), (2, (9, 9))][i % 6]
            yield case("direct", make_conv, dtype=dtype, direct=True, groups=groups, channels=channels)
        for i, baked in enumerate([(3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (7, 1, 1), (7, 2, 1), (3, 1, 2), (3, 3, 1), (1, 1, 1), None, None, None]):
            for out_w in (1, 2, 4)[: 2 + (i % 2)]:
                yield case("depthwise", make_depthwise, dtype=dtype, baked=baked, out_w=out_w)
        for kind in (0, 1, 2):
            for baked in ((2, 2), (3, 3), None, None, None):
                for _ in range(2 * repeat):
                    yield case("pool", make_pool, dtype=dtype, kind=kind, baked=baked, epilogue=("relu",) if baked == (2, 2) else ())
        for maximum in (False, True):
            for pixels in ((1, 1), (7, 7), (13, 5), (1, 1000) if small else (112, 112)):
                yield case("global", make_global_pool, dtype=dtype, maximum=maximum, pixels=pixels, epilogue=("Bias", "relu") if pixels == (7, 7) else ())
        for name in (*ACTIVATIONS, *OTHER_OPS):
            yield case("op", make_pointwise, dtype=dtype, epilogue=(name,))
            yield case("special", make_pointwise, dtype=dtype, epilogue=(name,), special=True)
        for epilogue in EPILOGUES:
            yield case("op", make_pointwise, dtype=dtype, epilogue=epilogue)
        for sources in (1, 2, 3, 5, 8):
            for epilogue in ((), ("ScaleVec", "ShiftVec", "relu"), ("AddFull", "MulGate")):
                yield case("concat", make_concat, dtype=dtype, sources=sources, epilogue=epilogue)
        for other in ("f16", "tf32"):
            for to_nhwc in (True, False):
                for tile in (0, 32, 64):
                    yield case("layout", make_layout, dtype=dtype, other=other, to_nhwc=to_nhwc, tile=tile)
