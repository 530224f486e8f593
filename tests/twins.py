"""Slow, plain numpy twins of the kernel templates, in float64: what each computes, said without any of its tricks.

A twin takes the spec and the kernel's arguments by name; a pointer is the flat rest of its buffer from the address on, as bytes. It rounds to
the storage type where the kernel stores. :func:`run_plan` runs a whole launch plan that way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plans import poisoned, resolve
from tilewright.optimizer.launch import LaunchPlan
from tilewright.optimizer.records import KernelSpec

Args = Mapping[str, Any]
STORAGE = {"tilewright::F16": np.dtype(np.float16), "tilewright::TF32": np.dtype(np.float32)}
ERF = np.vectorize(math.erf, otypes=[float])


def run_plan(plan: LaunchPlan, specs: Mapping[str, KernelSpec], inputs: Sequence[np.ndarray], sms: int = 132) -> list[np.ndarray]:
    """The outputs of ``plan`` for ``inputs``; ``specs`` by the names of the plan's images. What no kernel writes stays NaN (bytes 0xff)."""
    numbers = resolve(plan, specs, [a.shape for a in inputs], sms)
    outputs = [poisoned(shape, dtype) for dtype, shape in numbers.outputs]
    buffers = {("in", i): a for i, a in enumerate(inputs)} | {("out", i): a for i, a in enumerate(outputs)}
    buffers |= {("ws", i): poisoned([size], np.dtype(np.uint8)) for i, size in enumerate(numbers.scratch)}
    flat = {name: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for name, a in buffers.items()}
    for call in numbers.calls:
        args = {n: flat[v[0]][v[1] :] if isinstance(v, tuple) else v for n, v in call.args.items()}
        with np.errstate(all="ignore"):
            TWINS[call.spec.template](call.spec, args)
    return outputs


def view(buffer: np.ndarray, dtype: np.dtype, rows: int, pitch: int, columns: int, offset: int = 0) -> np.ndarray:
    """``[rows, columns]`` of ``dtype``, rows ``pitch`` elements apart, from element ``offset`` of a flat byte buffer on; writable."""
    assert rows > 0 and columns > 0 and offset >= 0
    last = offset + (rows - 1) * pitch + columns
    assert last * dtype.itemsize <= buffer.size, f"{last} elements of {dtype}, the buffer has {buffer.size} bytes"
    start = buffer[offset * dtype.itemsize : last * dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(start, (rows, columns), (pitch * dtype.itemsize, dtype.itemsize))


def vector(buffer: np.ndarray, count: int) -> np.ndarray:
    """``count`` float32 of a flat byte buffer, as float64."""
    return view(buffer, np.dtype(np.float32), 1, count, count)[0].astype(np.float64)


# Epilogue


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _hard_sigmoid(x: np.ndarray, a: float, b: float) -> np.ndarray:
    return np.maximum(0.0, np.minimum(1.0, a * x + b))


MAPS: dict[str, Callable[..., np.ndarray]] = {
    "Relu": lambda x: np.maximum(x, 0.0),
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "LeakyRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "Silu": lambda x: x * _sigmoid(x),
    "Gelu": lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))),
    "GeluTanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)),
    "Affine": lambda x, a, b: a * x + b,
}
CHANNEL_OPS: dict[str, Callable[..., np.ndarray]] = {
    "Bias": lambda x, v: x + v,
    "ScaleVec": lambda x, v: x * v,
    "ShiftVec": lambda x, v: x + v,
    "PReluVec": lambda x, v: np.where(x < 0, x * v, x),
}
TENSOR_OPS: dict[str, Callable[..., np.ndarray]] = {
    "AddFull": lambda x, e: x + e,
    "MulFull": lambda x, e: x * e,
    "SubFull": lambda x, e: x - e,
    "RSubFull": lambda x, e: e - x,
    "MulGate": lambda x, e: x * e,
    "AddGate": lambda x, e: x + e,
}


def epilogue_ops(text: str) -> list[tuple[str, list[str]]]:
    """Names and template arguments of the ops in an ``Epilogue<...>``."""
    inner = re.fullmatch(r"tilewright::Epilogue<(.*)>", text)
    assert inner is not None, text
    found = re.findall(r"tilewright::(\w+)(?:<([^<>]*)>)?(?:, |$)", inner.group(1))
    assert ", ".join(f"tilewright::{n}" + (f"<{a}>" if a else "") for n, a in found) == inner.group(1), text
    return [(name, [a.strip() for a in args.split(",")] if args else []) for name, args in found]


def _float(bits: str) -> float:
    return float(np.array([int(bits.rstrip("u"), 16)], np.uint32).view(np.float32)[0])


def apply_epilogue(spec: KernelSpec, args: Args, values: np.ndarray, samples: int) -> np.ndarray:
    """The epilogue of ``spec`` on ``[rows, channels]``, rows of ``samples`` samples one after the other."""
    rows, channels = values.shape
    dtype = STORAGE[str(spec["TYPE"])]
    for name, parameters in epilogue_ops(str(spec["EPILOGUE"])):
        if name in MAPS:
            values = MAPS[name](values, *map(_float, parameters))
        elif name in CHANNEL_OPS:
            buffer = args[f"e{parameters[0]}"] if parameters else args["bias"]
            values = CHANNEL_OPS[name](values, np.zeros(channels) if buffer is None else vector(buffer, channels))
        else:
            count = samples if name.endswith("Gate") else rows
            operand = view(args[f"e{parameters[0]}"], dtype, count, args[f"e{parameters[0]}_pitch"], channels).astype(np.float64)
            values = TENSOR_OPS[name](values, np.repeat(operand, rows // count, axis=0))
    return values


def store(spec: KernelSpec, args: Args, values: np.ndarray, samples: int) -> None:
    """Applies the epilogue to ``[rows, channels]`` and writes y, padding channels as zeros."""
    rows, channels = values.shape
    end = max(args["y_offset"] + channels, args["y_zero_to"])
    y = view(args["y"], STORAGE[str(spec["TYPE"])], rows, args["y_pitch"], end - args["y_offset"], args["y_offset"])
    y[:, :channels] = apply_epilogue(spec, args, values, samples)
    y[:, channels:] = 0


# Templates


def image(spec: KernelSpec, args: Args, channels: int) -> np.ndarray:
    """x as ``[N, H, W, channels]`` in float64."""
    n, h, w = args["batch"], args["h"], args["w"]
    return view(args["x"], STORAGE[str(spec["TYPE"])], n * h * w, args["x_pitch"], channels).astype(np.float64).reshape(n, h, w, channels)


def windows(args: Args, axis: str, tap: int) -> tuple[np.ndarray, np.ndarray]:
    """Output positions along ``h`` or ``w`` for which tap number ``tap`` lies in the image, and where it lies."""
    count, size = (args["p"], args["h"]) if axis == "h" else (args["q"], args["w"])
    outputs = np.arange(count)
    places = outputs * args[f"stride_{axis}"] - args[f"pad_{axis}"] + tap * args[f"dil_{axis}"]
    inside = (places >= 0) & (places < size)
    return outputs[inside], places[inside]


def convolve(args: Args, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """``[N, P, Q, groups, Cout / groups]`` from x ``[N, H, W, groups, Cin / groups]`` and weight ``[groups, Cout / groups, kh, kw, Cin / groups]``."""
    out = np.zeros((x.shape[0], args["p"], args["q"], *weight.shape[:2]))
    for r in range(weight.shape[2]):
        p, y = windows(args, "h", r)
        for s in range(weight.shape[3]):
            q, columns = windows(args, "w", s)
            if p.size and q.size:
                tap = x[:, y][:, :, columns]
                product = np.matmul(tap.reshape(-1, *tap.shape[3:]).transpose(1, 0, 2), weight[:, :, r, s].transpose(0, 2, 1))
                out[:, p[:, None], q] += product.transpose(1, 0, 2).reshape(*tap.shape[:3], *weight.shape[:2])
    return out


def _grouped(spec: KernelSpec, args: Args) -> np.ndarray:
    groups, inputs, outputs, taps = args["groups"], args["cin_g"], args["cout_g"], args["kh"] * args["kw"]
    x = image(spec, args, groups * inputs).reshape(args["batch"], args["h"], args["w"], groups, inputs)
    weight = view(args["weight"], STORAGE[str(spec["TYPE"])], groups * outputs, taps * inputs, taps * inputs).astype(np.float64)
    return convolve(args, x, weight.reshape(groups, outputs, args["kh"], args["kw"], inputs)).reshape(-1, groups * outputs)


def conv_direct(spec: KernelSpec, args: Args) -> None:
    store(spec, args, _grouped(spec, args), args["batch"])


def conv_igemm(spec: KernelSpec, args: Args) -> None:
    vec = spec["VEC"]
    assert args["cin_g"] % vec == 0 and args["x_pitch"] % vec == 0 and args["kh"] + args["kw"] <= 32
    plain = (args["kh"], args["kw"], args["stride_h"], args["stride_w"], args["pad_h"], args["pad_w"], args["groups"]) == (1, 1, 1, 1, 0, 0, 1)
    assert not spec["POINTWISE"] or (plain and (args["p"], args["q"]) == (args["h"], args["w"]))
    if spec["SPLIT_K"] == 1:
        store(spec, args, _grouped(spec, args), args["batch"])
        return
    # How the reduction is split is the kernels' own affair: all of it goes to the first part.
    assert args["groups"] == 1 and args["ws_pitch"] % 4 == 0 and args["ws_pitch"] >= args["cout_g"]
    values = _grouped(spec, args)
    rows = values.shape[0]
    parts = view(args["workspace"], np.dtype(np.float32), spec["SPLIT_K"] * rows, args["ws_pitch"], values.shape[1])
    parts[rows:] = 0
    parts[:rows] = values


def splitk_reduce(spec: KernelSpec, args: Args) -> None:
    rows, channels = args["batch"] * args["p"] * args["q"], args["channels"]
    parts = view(args["workspace"], np.dtype(np.float32), spec["SPLIT_K"] * rows, args["ws_pitch"], channels).astype(np.float64)
    store(spec, args, parts.reshape(spec["SPLIT_K"], rows, channels).sum(axis=0), args["batch"])


def conv_depthwise(spec: KernelSpec, args: Args) -> None:
    baked = [spec[name] for name in ("KERNEL_H", "KERNEL_W", "STRIDE_W", "DILATION_W")]
    assert baked in ([0] * 4, [args[name] for name in ("kh", "kw", "stride_w", "dil_w")])
    channels, taps = args["channels"], args["kh"] * args["kw"]
    weight = view(args["weight"], STORAGE[str(spec["TYPE"])], taps, args["w_pitch"], channels).astype(np.float64)
    x = image(spec, args, channels)[..., None]
    values = convolve(args, x, weight.T.reshape(channels, 1, args["kh"], args["kw"], 1))
    store(spec, args, values.reshape(-1, channels), args["batch"])


def pool(spec: KernelSpec, args: Args) -> None:
    assert [spec["KERNEL_H"], spec["KERNEL_W"]] in ([0, 0], [args["kh"], args["kw"]])
    x = image(spec, args, args["channels"])
    n, p, q, channels = args["batch"], args["p"], args["q"], args["channels"]
    maximum = np.full((n, p, q, channels), -np.inf)
    total, met = np.zeros((n, p, q, channels)), np.zeros((p, q))
    for r in range(args["kh"]):
        rows, y = windows(args, "h", r)
        for s in range(args["kw"]):
            columns, places = windows(args, "w", s)
            if rows.size and columns.size:
                tap = x[:, y][:, :, places]
                cut = (slice(None), rows[:, None], columns)
                maximum[cut] = np.maximum(maximum[cut], tap)
                total[cut] += tap
                met[rows[:, None], columns] += 1
    if spec["KIND"] == 0:
        values = np.where(met[..., None] == 0, np.finfo(np.float32).min, maximum)
    else:
        count = met if spec["KIND"] == 1 else np.outer(_padded_taps(args, "h"), _padded_taps(args, "w"))
        values = np.where(met[..., None] == 0, 0.0, total / np.maximum(count, 1)[..., None])
    store(spec, args, values.reshape(-1, channels), n)


def _padded_taps(args: Args, axis: str) -> np.ndarray:
    """How many taps of each window along ``axis`` lie before the end of the padding."""
    count, size = (args["p"], args["h"]) if axis == "h" else (args["q"], args["w"])
    first = np.arange(count) * args[f"stride_{axis}"] - args[f"pad_{axis}"]
    places = first[:, None] + np.arange(args[f"k{axis}"]) * args[f"dil_{axis}"]
    return (places < size + args[f"pad_end_{axis}"]).sum(axis=1)


def global_pool(spec: KernelSpec, args: Args) -> None:
    x = image(spec, args, args["channels"]).reshape(args["batch"], -1, args["channels"])
    store(spec, args, x.max(axis=1) if spec["MAXIMUM"] else x.mean(axis=1), args["batch"])


def pointwise(spec: KernelSpec, args: Args) -> None:
    rows = args["batch"] * args["p"] * args["q"]
    x = view(args["x"], STORAGE[str(spec["TYPE"])], rows, args["x_pitch"], args["channels"])
    store(spec, args, x.astype(np.float64), args["batch"])


def concat(spec: KernelSpec, args: Args) -> None:
    rows = args["batch"] * args["p"] * args["q"]
    sources = [(args[f"x{i}"], args[f"x{i}_pitch"], args[f"x{i}_channels"]) for i in range(int(spec["SOURCES"]))]
    values = np.concatenate([view(x, STORAGE[str(spec["TYPE"])], rows, pitch, channels) for x, pitch, channels in sources], axis=1)
    assert values.shape[1] == args["channels"]
    store(spec, args, values.astype(np.float64), args["batch"])


def layout(spec: KernelSpec, args: Args) -> None:
    n, pixels, channels = args["batch"], args["h"] * args["w"], args["channels"]
    end = max(args["offset"] + channels, args["zero_to"]) if spec["TO_NHWC"] else args["offset"] + channels
    nhwc = view(args["y" if spec["TO_NHWC"] else "x"], STORAGE[str(spec["TYPE"])], n * pixels, args["pitch"], end - args["offset"], args["offset"])
    nchw = view(args["x" if spec["TO_NHWC"] else "y"], STORAGE[str(spec["OTHER"])], n * channels, pixels, pixels).reshape(n, channels, pixels)
    if spec["TO_NHWC"]:
        nhwc[:, :channels] = nchw.transpose(0, 2, 1).reshape(-1, channels)
        nhwc[:, channels:] = 0
    else:
        nchw[...] = nhwc.reshape(n, pixels, channels).transpose(0, 2, 1)


TWINS: dict[str, Callable[[KernelSpec, Args], None]] = {
    f.__name__: f for f in (conv_igemm, splitk_reduce, conv_depthwise, conv_direct, pool, global_pool, pointwise, concat, layout)
}
