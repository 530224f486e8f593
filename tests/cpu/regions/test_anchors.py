"""Where a region begins: what each kind of anchor accepts, and the reason of each refusal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import TensorProto

from plan_harness import Planned, plan
from rule_harness import Dims, model, node, weights

HALF = TensorProto.FLOAT16


def conv(
    attrs: Mapping[str, object] | None = None,
    w: tuple[int, ...] = (6, 4, 3, 3),
    x: Dims = (1, 4, 9, 8),
    bias: bool = False,
    dtype: int = TensorProto.FLOAT,
    precision: str = "match",
) -> Planned:
    kind = np.float16 if dtype == HALF else np.float64 if dtype == TensorProto.DOUBLE else np.float32
    constants = {"w": weights(*w, dtype=kind), "b": weights(w[0], dtype=kind)}
    m = model([node("Conv", ["x", "w", "b"] if bias else ["x", "w"], "y", **(attrs or {}))], {"x": x}, ["y"], constants, dtype=dtype)
    return plan(m, precision)


def pool(op: str, attrs: Mapping[str, object] | None = None, x: Dims = (1, 4, 9, 8), outputs: tuple[str, ...] = ("y",), dtype: int = 1) -> Planned:
    attrs = {"kernel_shape": [3, 3][: len(x) - 2]} | dict(attrs or {}) if "Global" not in op else dict(attrs or {})
    return plan(model([node(op, ["x"], outputs, **attrs)], {"x": x}, outputs, dtype=dtype, dtypes={"i": TensorProto.INT64}))


# Convolutions

CONVS = {
    "plain": ({}, "3x3/1x1 pads 0,0,0,0"),
    "strides, pads": ({"strides": [2, 1], "pads": [1, 0, 2, 3]}, "3x3/2x1 pads 1,0,2,3"),
    "dilations": ({"dilations": [2, 3], "pads": [2, 3, 2, 3]}, "3x3/1x1 pads 2,3,2,3 dil 2x3"),
    "VALID": ({"auto_pad": "VALID", "strides": [2, 2]}, "3x3/2x2 pads 0,0,0,0"),
    "SAME without stride": ({"auto_pad": "SAME_UPPER", "dilations": [1, 2]}, "3x3/1x1 pads 1,2,1,2 dil 1x2"),
    "SAME with stride": ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, "3x3/2x2 pads 0,0,0,0same_lower"),
    "kernel_shape given": ({"kernel_shape": [3, 3]}, "3x3/1x1 pads 0,0,0,0"),
}


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, HALF])
def test_conv(case: str, dtype: int) -> None:
    attrs, window = CONVS[case]
    planned = conv(attrs, bias=True, dtype=dtype)
    assert planned.stages == [f"conv x[4] -> y[6] {window}"] and not planned.reasons
    (region,) = planned.regions
    assert region.compute == ("f16" if dtype == HALF else "tf32") and region.rank == 4 and region.stages[0].bias is not None


@pytest.mark.parametrize(("even", "pads"), [("SAME_UPPER", "1,0,2,1"), ("SAME_LOWER", "2,1,1,0")])
def test_conv_pads_an_even_kernel_on_the_side_that_auto_pad_names(even: str, pads: str) -> None:
    assert conv({"auto_pad": even}, w=(6, 4, 4, 2)).stages == [f"conv x[4] -> y[6] 4x2/1x1 pads {pads}"]


@pytest.mark.parametrize(("w", "groups", "depthwise"), [((6, 2, 3, 3), 2, False), ((4, 1, 3, 3), 4, True), ((8, 1, 3, 3), 4, True), ((6, 4, 3, 3), 1, False)])
def test_conv_groups(w: tuple[int, ...], groups: int, depthwise: bool) -> None:
    (region,) = conv({"group": groups}, w=w).regions
    stage = region.stages[0]
    assert (stage.channels_in, stage.channels_out, stage.groups, stage.depthwise) == (4, w[0], groups, depthwise)


@pytest.mark.parametrize("attrs", [{}, {"strides": [2], "pads": [1, 2], "dilations": [2]}])
def test_conv_of_a_sequence_has_height_one(attrs: dict[str, object]) -> None:
    planned = conv(attrs, w=(6, 4, 3), x=("n", 4, "l"))
    window = "1x3/1x2 pads 0,1,0,2 dil 1x2" if attrs else "1x3/1x1 pads 0,0,0,0"
    assert planned.stages == [f"conv x[4] -> y[6] {window}"] and planned.regions[0].rank == 3


def nothing(op: str, **attrs: object) -> Planned:
    """``op`` on a tensor without elements."""
    constants = {"s": np.array([0]), "e": np.array([0]), "a": np.array([0]), "w": weights(6, 4, 3, 3)}
    nodes = [node("Slice", ["x", "s", "e", "a"], "z"), node(op, ["z", "w"] if op == "Conv" else ["z"], "y", **attrs)]
    return plan(model(nodes, {"x": [2, 4, 8, 8]}, ["y"], constants))


CONVS_REFUSED = {
    "3-D": (lambda: conv(w=(6, 4, 3, 3, 3), x=(1, 4, 8, 8, 8)), "3-D convolution; 1-D and 2-D are supported"),
    "negative pads": (lambda: conv({"pads": [0, 0, -1, 0]}), "negative pads"),
    "double": (lambda: conv(dtype=TensorProto.DOUBLE), "element type double; kernels exist for float16 and float"),
    "fp32": (lambda: conv(precision="fp32"), "precision fp32: no convolution kernel without TF32 yet"),
    "no outputs": (lambda: conv(w=(0, 4, 3, 3)), "its weights have no elements"),
    "uneven groups": (lambda: conv({"group": 4}, w=(6, 1, 3, 3)), "6 output channels in 4 groups"),
    "no elements": (lambda: nothing("Conv"), "its input has no elements"),
    "unknown channels": (lambda: conv(x=("n", "c", "h", "w")), "the number of its channels is not known"),
}


@pytest.mark.parametrize("case", CONVS_REFUSED)
def test_conv_refused(case: str) -> None:
    make, reason = CONVS_REFUSED[case]
    planned = make()
    assert not planned.regions and planned.reasons == reason


def test_conv_in_fp16_is_planned_whatever_fp32_is_asked_for() -> None:
    assert conv(dtype=HALF, precision="fp32").stages


@pytest.mark.parametrize("which", ["w", "b"])
def test_conv_whose_constants_the_caller_gives(which: str) -> None:
    dims: dict[str, Dims] = {"x": [1, 4, 8, 8], "w": [6, 4, 3, 3], "b": [6]}
    constants = {name: weights(*map(int, dims[name])) for name in ("w", "b") if name != which}
    m = model([node("Conv", ["x", "w", "b"], "y")], {"x": dims["x"], which: dims[which]}, ["y"], constants)
    planned = plan(m)
    assert not planned.regions and planned.reasons == ("its weights are not constant" if which == "w" else "its bias is not constant")


def test_conv_whose_weights_can_be_overridden() -> None:
    m = model([node("Conv", ["x", "w"], "y")], {"x": [1, 4, 8, 8], "w": [6, 4, 3, 3]}, ["y"], {"w": weights(6, 4, 3, 3)})
    assert plan(m).reasons == "its weights are not constant"
    assert plan(m, freeze_initializers=True).stages == ["conv x[4] -> y[6] 3x3/1x1 pads 0,0,0,0"]


def test_conv_with_constants_from_constant_nodes() -> None:
    from onnx import numpy_helper

    values = {"w": weights(6, 4, 3, 3), "b": weights(6)}
    makers = [node("Constant", [], k, value=numpy_helper.from_array(v)) for k, v in values.items()]
    (region,) = plan(model([*makers, node("Conv", ["x", "w", "b"], "y")], {"x": [1, 4, 8, 8]}, ["y"])).regions
    assert np.array_equal(region.stages[0].weights.values, values["w"]) and np.array_equal(region.stages[0].bias, values["b"])
    assert [n.op for n in region.nodes] == ["Conv"]


def test_conv_of_a_constant() -> None:
    m = model([node("Conv", ["c", "w"], "z"), node("Add", ["z", "x"], "y")], {"x": [1, 6, 6, 6]}, ["y"], {"c": weights(1, 4, 8, 8), "w": weights(6, 4, 3, 3)})
    assert plan(m).reasons == "its input is a constant"


def test_conv_whose_input_and_weights_differ_in_type() -> None:
    """No runtime takes it; the planner says so all the same."""
    m = model([node("Conv", ["x", "w"], "y")], {"x": [1, 4, 8, 8]}, ["y"], {"w": weights(6, 4, 3, 3)})
    m.graph.input[0].type.tensor_type.elem_type = HALF
    assert plan(m).reasons == "its input and weights differ in element type"


def test_conv_of_another_domain_is_none_of_this() -> None:
    m = model([node("Conv", ["x", "w"], "y", domain="com.example")], {"x": [1, 4, 8, 8]}, ["y"], {"w": weights(6, 4, 3, 3)})
    planned = plan(m)
    assert not planned.regions and not planned.plan.refusals


# Poolings

POOLS = {
    "plain": ({}, "3x3/1x1 pads 0,0,0,0"),
    "strides, pads": ({"strides": [2, 2], "pads": [1, 1, 0, 1]}, "3x3/2x2 pads 1,1,0,1"),
    "ceil": ({"strides": [2, 2], "ceil_mode": 1}, "3x3/2x2 pads 0,0,0,0"),
    "SAME": ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, "3x3/2x2 pads 0,0,0,0same_upper"),
}


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool(case: str, op: str) -> None:
    attrs, window = POOLS[case]
    planned = pool(op, attrs)
    assert planned.stages == [f"{'max' if op == 'MaxPool' else 'average'}_pool x[4] -> y[4] {window}"]
    assert planned.regions[0].stages[0].window.ceil_mode == ("ceil_mode" in attrs)


def test_pool_of_a_sequence() -> None:
    assert pool("AveragePool", {"count_include_pad": 1, "pads": [1, 1]}, x=(1, 4, 9)).stages == ["average_pool x[4] -> y[4] 1x3/1x1 pads 0,1,0,1"]
    assert pool("MaxPool", {"dilations": [2]}, x=(1, 4, 9)).stages == ["max_pool x[4] -> y[4] 1x3/1x1 pads 0,0,0,0 dil 1x2"]


POOLS_REFUSED = {
    "indices": (lambda: pool("MaxPool", outputs=("y", "i")), "its indices are used"),
    "dilated average": (lambda: pool("AveragePool", {"dilations": [1, 2]}), "average pooling with dilation"),
    "SAME with ceil_mode": (lambda: pool("MaxPool", {"auto_pad": "SAME_LOWER", "ceil_mode": 1}), "ceil_mode with auto_pad"),
    "SAME with dilation": (lambda: pool("MaxPool", {"auto_pad": "SAME_LOWER", "dilations": [2, 2]}), "auto_pad with dilation"),
    "negative pads": (lambda: pool("MaxPool", {"pads": [0, 0, 0, -1]}), "negative pads"),
    "3-D": (lambda: pool("MaxPool", {"kernel_shape": [2, 2, 2]}, x=(1, 4, 8, 8, 8)), "its input has rank 5; 1-D and 2-D are supported"),
    "integers": (lambda: pool("MaxPool", dtype=TensorProto.INT8), "element type int8; kernels exist for float16 and float"),
    "unknown channels": (lambda: pool("MaxPool", x=(1, "c", 8, 8)), "the number of its channels is not known"),
    "no elements": (lambda: nothing("MaxPool", kernel_shape=[2, 2]), "its input has no elements"),
    "global, 3-D": (lambda: pool("GlobalAveragePool", x=(1, 4, 8, 8, 8)), "its input has rank 5; 1-D and 2-D are supported"),
    "global, double": (lambda: pool("GlobalMaxPool", dtype=TensorProto.DOUBLE), "element type double; kernels exist for float16 and float"),
}


@pytest.mark.parametrize("case", POOLS_REFUSED)
def test_pool_refused(case: str) -> None:
    make, reason = POOLS_REFUSED[case]
    planned = make()
    assert not planned.regions and planned.reasons == reason


def test_pool_of_unknown_rank() -> None:
    m = model(
        [node("Reshape", ["x", "s"], "r"), node("MaxPool", ["r"], "y", kernel_shape=[2, 2])], {"x": [8], "s": ["k"]}, ["y"], dtypes={"s": TensorProto.INT64}
    )
    assert plan(m).reasons == "the shape of its input is not known"


@pytest.mark.parametrize(("op", "kind"), [("GlobalAveragePool", "global_average_pool"), ("GlobalMaxPool", "global_max_pool")])
@pytest.mark.parametrize("x", [("n", 4, "h", "w"), ("n", 4, "l")])
def test_global_pool(op: str, kind: str, x: Dims) -> None:
    assert pool(op, x=x).stages == [f"{kind} x[4] -> y[4]"]


MEANS = {
    "last two": ([2, 3], (1, 4, 8, 8), {}, True),
    "from behind, any order": ([-1, -2], (1, 4, 8, 8), {}, True),
    "of a sequence": ([2], (1, 4, 8), {}, True),
    "one axis of two": ([3], (1, 4, 8, 8), {}, False),
    "channels too": ([1, 2, 3], (1, 4, 8, 8), {}, False),
    "without keepdims": ([2, 3], (1, 4, 8, 8), {"keepdims": 0}, False),
    "of a matrix": ([1], (4, 8), {}, False),
    "over all": ([], (1, 4, 8, 8), {}, False),
}


@pytest.mark.parametrize("case", MEANS)
@pytest.mark.parametrize("opset", [13, 18])
def test_mean_over_the_image_is_a_global_pool(case: str, opset: int) -> None:
    axes, x, attrs, accepted = MEANS[case]
    as_input = opset >= 18 and axes
    attrs = attrs if as_input or not axes else attrs | {"axes": axes}
    m = model([node("ReduceMean", ["x", "axes"] if as_input else ["x"], "y", **attrs)], {"x": x}, ["y"], {"axes": np.array(axes, np.int64)}, opset=opset)
    assert plan(m).stages == (["global_average_pool x[4] -> y[4]"] if accepted else [])


def test_mean_over_axes_that_the_caller_gives() -> None:
    m = model([node("ReduceMean", ["x", "axes"], "y")], {"x": [1, 4, 8, 8], "axes": [2]}, ["y"], opset=18, dtypes={"axes": TensorProto.INT64})
    assert not plan(m).regions
