"""The numpy twins against ONNX Runtime's CPU provider, op by op; the twins are the oracle of every kernel test."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import kernel_cases
import plan_builder
import twins
from kernel_cases import Case, window
from plans import relative_error
from tilewright.optimizer.launch import LaunchPlan, Output, arg_in, arg_out, arg_scratch, const, dim
from tilewright.optimizer.lower import kernels
from tilewright.optimizer.lower.pack import pack
from tilewright.optimizer.lower.render import kernel_name
from tilewright.optimizer.records import KernelSpec


def ort_run(op: str, inputs: list[np.ndarray], opset: int = 20, **attributes: Any) -> np.ndarray:
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names, inputs, strict=True)]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def nhwc(x: np.ndarray, channels: int) -> np.ndarray:
    out = np.zeros((x.shape[0], *x.shape[2:], channels), np.float32)
    out[..., : x.shape[1]] = x.transpose(0, 2, 3, 1)
    return out


def run(template: str, params: dict[str, Any], values: dict[str, Any], inputs: list[np.ndarray], dims: tuple[int, ...], dtype: str = "tf32") -> np.ndarray:
    """One launch through the twins; ``values`` name inputs by ``arg_in``."""
    spec = KernelSpec.of(template, params)
    launch = kernels.launch(spec, 0, kernel_name(spec), values)
    plan = LaunchPlan((Output({"f16": "f16", "tf32": "f32"}[dtype], tuple(map(const, dims))),), (), ("k",), (launch,))
    return twins.run_plan(plan, {"k": spec}, inputs)[0]


def spatial(rng: np.random.Generator) -> tuple[kernel_cases.Window, dict[str, Any]]:
    place = window(rng, True)
    return place, {"kernel_shape": place.kernel, "strides": place.stride, "pads": place.pads, "dilations": place.dilation}


@pytest.mark.parametrize("seed", range(40))
def test_conv(seed):
    rng = np.random.default_rng(seed)
    place, attributes = spatial(rng)
    n, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    inputs, outputs = (int(v) for v in rng.integers(1, 12, 2))
    x = rng.standard_normal((n, groups * inputs, place.h, place.w)).astype(np.float32)
    w = rng.standard_normal((groups * outputs, inputs, *place.kernel)).astype(np.float32)
    b = rng.standard_normal(groups * outputs).astype(np.float32)
    want = ort_run("Conv", [x, w, b], group=groups, **attributes)
    x_pitch, pitch = -(-groups * inputs // 4) * 4, -(-groups * outputs // 4) * 4
    values = {"x": arg_in(0), "weight": arg_in(1), "bias": arg_in(2), "y": arg_out(0), "batch": n, "x_pitch": x_pitch}
    values |= {"y_pitch": pitch, "y_offset": 0, "y_zero_to": pitch}
    values |= place.values() | {"groups": groups, "cin_g": inputs, "cout_g": outputs}
    params = {"TYPE": kernels.TF32, "LANES": 1, "THREADS": 128, "EPILOGUE": kernels.epilogue([kernels.op("Bias")])}
    got = run("conv_direct", params, values, [nhwc(x, x_pitch), pack(w, "ohwi", inputs), b], (n, place.p, place.q, pitch))
    assert relative_error(got, nhwc(want, pitch)) < 1e-6
    if groups == 1:
        vec = 4
        depth = -(-inputs // vec) * vec
        params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 3, "VEC": vec, "POINTWISE": False, "SPLIT_K": 1}
        params = {"TYPE": kernels.TF32, **params, "EPILOGUE": kernels.epilogue([kernels.op("Bias")])}
        got = run("conv_igemm", params, {**values, "cin_g": depth}, [nhwc(x, x_pitch), pack(w, "ohwi", depth), b], (n, place.p, place.q, pitch))
        assert relative_error(got, nhwc(want, pitch)) < 1e-6


@pytest.mark.parametrize("seed", range(15))
def test_depthwise(seed):
    rng = np.random.default_rng(seed)
    place, attributes = spatial(rng)
    n, channels = int(rng.integers(1, 4)), int(rng.integers(1, 20))
    x = rng.standard_normal((n, channels, place.h, place.w)).astype(np.float32)
    w = rng.standard_normal((channels, 1, *place.kernel)).astype(np.float32)
    want = ort_run("Conv", [x, w], group=channels, **attributes)
    pitch = -(-channels // 4) * 4
    values = {"x": arg_in(0), "weight": arg_in(1), "y": arg_out(0), "batch": n, "x_pitch": pitch, "y_pitch": pitch, "y_offset": 0, "y_zero_to": pitch}
    values |= place.values() | {"channels": channels, "w_pitch": pitch}
    params = {"TYPE": kernels.TF32, "KERNEL_H": 0, "KERNEL_W": 0, "STRIDE_W": 0, "DILATION_W": 0, "OUT_W": 1, "LANES": 1, "THREADS": 128}
    got = run("conv_depthwise", {**params, "EPILOGUE": kernels.epilogue()}, values, [nhwc(x, pitch), pack(w, "hwo", pitch)], (n, place.p, place.q, pitch))
    assert relative_error(got, nhwc(want, pitch)) < 1e-6


@pytest.mark.parametrize("seed", range(60))
def test_pool(seed):
    """Window, ceil_mode and divisor as ONNX Runtime has them."""
    rng = np.random.default_rng(seed)
    kind = seed % 3
    for _ in range(200):
        place, attributes = spatial(rng)
        pads = tuple(min(p, place.kernel[i % 2] - 1) for i, p in enumerate(place.pads))
        ceil = int(rng.integers(0, 2))
        attributes |= {"pads": pads, "ceil_mode": ceil}
        reach = [d * (k - 1) + 1 for d, k in zip(place.dilation, place.kernel, strict=True)]
        if all(size + pads[i] + pads[i + 2] >= reach[i] for i, size in enumerate((place.h, place.w))):
            break
    n, channels = int(rng.integers(1, 4)), int(rng.integers(1, 10))
    x = rng.standard_normal((n, channels, place.h, place.w)).astype(np.float32)
    op, opset, counting = ("MaxPool", 12, {}) if kind == 0 else ("AveragePool", 19, {"count_include_pad": kind - 1})
    want = ort_run(op, [x], opset, **attributes, **counting)
    p, q = want.shape[2:]
    pitch = -(-channels // 4) * 4
    values = {"x": arg_in(0), "y": arg_out(0), "batch": n, "x_pitch": pitch, "y_pitch": pitch, "y_offset": 0, "y_zero_to": pitch, "channels": channels}
    values |= place.values() | {"p": p, "q": q, "pad_h": pads[0], "pad_w": pads[1], "pad_end_h": pads[2], "pad_end_w": pads[3]}
    params = {"TYPE": kernels.TF32, "KIND": kind, "KERNEL_H": 0, "KERNEL_W": 0, "LANES": 1, "THREADS": 128, "EPILOGUE": kernels.epilogue()}
    got = run("pool", params, values, [nhwc(x, pitch)], (n, p, q, pitch))
    assert relative_error(got, nhwc(want, pitch)) < 1e-6


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(op):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, 4, 7)).astype(np.float32)
    values = {"x": arg_in(0), "y": arg_out(0), "batch": 3, "h": 4, "w": 7, "x_pitch": 8, "y_pitch": 8, "y_offset": 0, "y_zero_to": 8, "channels": 5}
    params = {"TYPE": kernels.TF32, "MAXIMUM": op == "GlobalMaxPool", "LANES": 1, "THREADS": 128, "EPILOGUE": kernels.epilogue()}
    assert relative_error(run("global_pool", params, values, [nhwc(x, 8)], (3, 1, 1, 8)), nhwc(ort_run(op, [x]), 8)) < 1e-6


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 25.0, -25.0, 90.0, -90.0], np.float32)


@pytest.mark.parametrize(
    ("name", "op", "attributes"),
    [
        ("relu", "Relu", {}),
        ("leaky_relu", "LeakyRelu", {"alpha": 0.1}),
        ("sigmoid", "Sigmoid", {}),
        ("tanh", "Tanh", {}),
        ("hard_sigmoid", "HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
        ("hard_swish", "HardSwish", {}),
        ("gelu", "Gelu", {}),
        ("gelu_tanh", "Gelu", {"approximate": "tanh"}),
        ("mish", "Mish", {}),
        ("clip", "Clip", {}),
    ],
)
def test_activation(name, op, attributes):
    """NaN and infinities included."""
    x = np.concatenate([SPECIAL, np.random.default_rng(0).standard_normal(200).astype(np.float32) * 3])
    bounds = [np.float32(0.0), np.float32(1.5)] if op == "Clip" else []
    want = ort_run(op, [x, *map(np.array, bounds)], **attributes)
    spec = KernelSpec.of("pointwise", {"TYPE": kernels.TF32, "EPILOGUE": kernels.epilogue([kernels.activation_op(plan_builder.ACTIVATIONS[name])])})
    with np.errstate(all="ignore"):
        got = twins.apply_epilogue(spec, {}, x.astype(np.float64)[:, None], 1)[:, 0].astype(np.float32)
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize(
    ("op", "ort_op", "swap", "channelwise"),
    [
        ("Bias", "Add", False, True),
        ("ScaleVec", "Mul", False, True),
        ("ShiftVec", "Add", False, True),
        ("PReluVec", "PRelu", False, True),
        ("AddFull", "Add", False, False),
        ("MulFull", "Mul", False, False),
        ("SubFull", "Sub", False, False),
        ("RSubFull", "Sub", True, False),
        ("MulGate", "Mul", False, None),
        ("AddGate", "Add", False, None),
    ],
)
def test_operand(op, ort_op, swap, channelwise):
    rng = np.random.default_rng(1)
    n, pixels, channels = 3, 5, 4
    x = rng.standard_normal((n, pixels, channels)).astype(np.float32)
    other = rng.standard_normal({True: (channels,), False: (n, pixels, channels), None: (n, 1, channels)}[channelwise]).astype(np.float32)
    want = ort_run(ort_op, [other, x] if swap else [x, other])
    text = kernels.op(op) if op == "Bias" else kernels.op(op, 1)
    values = {"x": arg_in(0), "y": arg_out(0), "batch": dim(0, 0), "p": 1, "q": pixels, "x_pitch": 4, "y_pitch": 4, "y_offset": 0, "channels": channels}
    values |= {"bias": arg_in(1)} if op == "Bias" else {"e1": arg_in(1), "e1_pitch": channels}
    params = {"TYPE": kernels.TF32, "LANES": 1, "ROWS": 1, "THREADS": 128, "EPILOGUE": kernels.epilogue([text])}
    assert relative_error(run("pointwise", params, values, [x, other], (n, pixels, channels)), want) < 1e-6


def test_plan_of_several_launches():
    """A split convolution, a pooling of its result and a change of layout, through scratch that starts as NaN."""
    rng = np.random.default_rng(2)
    n, c, h, w, outputs = 2, 5, 6, 7, 6
    x = rng.standard_normal((n, c, h, w)).astype(np.float32)
    weight = rng.standard_normal((outputs, c, 3, 3)).astype(np.float32)
    plan = plan_builder.Plan("tf32", rng)
    t, empty = {"TYPE": kernels.TF32}, {"EPILOGUE": kernels.epilogue()}
    image, filters = plan.input(x), plan.input(pack(weight, "ohwi", 8))
    plan.scratch += [n * h * w * 8 * 4, 4 * n * h * w * 8 * 4, n * h * w * 8 * 4, n * 8 * 4]
    place = {"h": h, "w": w, "p": h, "q": w, "kh": 3, "kw": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1, "dil_h": 1, "dil_w": 1}
    y = {"y_pitch": 8, "y_offset": 0, "y_zero_to": 8}
    plan.launch(
        "layout",
        {**t, "OTHER": kernels.TF32, "TO_NHWC": True, "TILE_C": 0},
        {"x": image, "y": arg_scratch(0), "batch": n, "h": h, "w": w, "channels": c, "pitch": 8, "offset": 0, "zero_to": 8},
    )
    tile = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "WARPS_M": 2, "WARPS_N": 1, "STAGES": 2, "VEC": 4, "POINTWISE": False, "SPLIT_K": 4}
    split = {"workspace": arg_scratch(1), "ws_pitch": 8}
    conv = {"x": arg_scratch(0), "x_pitch": 8, "weight": filters, "batch": n, "groups": 1, "cin_g": 8, "cout_g": outputs, **place, **y, **split}
    plan.launch("conv_igemm", {**t, **tile, **empty}, conv)
    relu = {"EPILOGUE": kernels.epilogue([kernels.op("Relu")])}
    reduce = {**split, "y": arg_scratch(2), **y, "batch": n, "p": h, "q": w, "channels": outputs}
    plan.launch("splitk_reduce", {**t, "SPLIT_K": 4, "LANES": 2, "THREADS": 128, **relu}, reduce)
    pool = {"x": arg_scratch(2), "x_pitch": 8, "y": arg_scratch(3), **y, "batch": n, "h": h, "w": w, "channels": outputs}
    plan.launch("global_pool", {**t, "MAXIMUM": True, "LANES": 2, "THREADS": 128, **empty}, pool)
    plan.outputs.append(Output("f32", tuple(map(const, (n, outputs, 1, 1)))))
    plan.launch(
        "layout",
        {**t, "OTHER": kernels.TF32, "TO_NHWC": False, "TILE_C": 0},
        {"x": arg_scratch(3), "y": arg_out(0), "batch": n, "h": 1, "w": 1, "channels": outputs, "pitch": 8, "offset": 0},
    )
    made = plan.done()
    (got,) = twins.run_plan(made.plan, made.specs, made.inputs)
    want = ort_run("GlobalMaxPool", [ort_run("Relu", [ort_run("Conv", [x, weight], pads=[1, 1, 1, 1])])])
    assert relative_error(got, want) < 1e-6


def test_untouched_elements_stay_poisoned_and_reads_beyond_a_buffer_fail():
    options = {"dtype": "f16", "other": "tf32", "to_nhwc": True, "tile": 0, "concat": "inside"}
    made = Case("layout", kernel_cases.make_layout, 3, True, tuple(options.items())).make()
    (got,) = twins.run_plan(made.plan, made.specs, made.inputs)
    untouched = got.view(np.uint16) == 0xFFFF
    assert untouched.any() and not untouched.all() and np.isfinite(got[~untouched]).all()
    with pytest.raises(AssertionError, match="the buffer has"):
        twins.run_plan(made.plan, made.specs, [made.inputs[0][:0]])


def test_storage_is_rounded_once():
    x = np.array([[[1.0, 1.0 + 2**-11, 65504.0, 70000.0, 1e-9, 2.0, 3.0, 4.0]]], np.float32)
    values = {"x": arg_in(0), "y": arg_out(0), "batch": 1, "h": 1, "w": 1, "channels": 8, "pitch": 8, "offset": 0}
    got = run("layout", {"TYPE": kernels.F16, "OTHER": kernels.TF32, "TO_NHWC": True, "TILE_C": 0}, values, [x], (1, 1, 8), "f16")
    with np.errstate(over="ignore"):
        assert np.array_equal(got[0, 0], x[0, 0].astype(np.float16))
