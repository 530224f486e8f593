"""How stages become regions: Concat as channel offsets, pointwise work between regions, sub-graphs, layouts at the borders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from plan_harness import Planned, plan
from rule_harness import Dims, model, node, weights
from tilewright.optimizer.plan.regions.plan import plan_regions

BOOL = {"flag": TensorProto.BOOL}
X: Mapping[str, Dims] = {"x": ("n", 4, 8, 8)}


def conv(out: str, source: str = "x", channels: int = 4, to: int = 6) -> NodeProto:
    return node("Conv", [source, f"w{channels}_{to}"], out)


def planned(nodes: Iterable[NodeProto], inputs: Mapping[str, Dims] = X, outputs: Iterable[str] = ("y",), **constants: np.ndarray) -> Planned:
    """Plans ``nodes``, which may read 1 x 1 weights ``w<in>_<out>``."""
    nodes = list(nodes)
    pointwise = {name: weights(*map(int, reversed(name[1:].split("_"))), 1, 1) for n in nodes for name in n.input if n.op_type == "Conv" and name[:1] == "w"}
    return plan(model(nodes, inputs, outputs, pointwise | constants, dtypes=BOOL))


# Concat


def test_concat_is_a_channel_offset() -> None:
    result = planned([conv("a", to=3), conv("b", to=5), node("Relu", ["b"], "c"), node("MaxPool", ["x"], "d", kernel_shape=[1, 1]), concat("y", "a", "c", "d")])
    (region,) = result.regions
    assert result.stages == [
        "conv x[4] -> a[3] 1x1/1x1 pads 0,0,0,0",
        "conv x[4] -> c[5] 1x1/1x1 pads 0,0,0,0 at 3 + relu",
        "max_pool x[4] -> d[4] 1x1/1x1 pads 0,0,0,0 at 8",
    ]
    assert region.output.name == region.label == "y" and region.channels == 12 and [t.name for t in region.inputs] == ["x"]
    assert [n.op for n in region.nodes] == ["Conv", "Conv", "Relu", "MaxPool", "Concat"]


def concat(out: str, *inputs: str, axis: int = 1) -> NodeProto:
    return node("Concat", inputs, out, axis=axis)


def test_axis_may_count_from_behind() -> None:
    assert len(planned([conv("a"), conv("b"), concat("y", "a", "b", axis=-3)]).regions) == 1
    sequence = model(
        [node("Conv", ["x", "w"], "a"), node("Conv", ["x", "w"], "b"), concat("y", "a", "b", axis=-2)], {"x": [1, 4, 8]}, ["y"], {"w": weights(6, 4, 1)}
    )
    assert len(plan(sequence).regions) == 1


@pytest.mark.parametrize("axis", [0, 2, 3, -1, -2])
def test_concat_along_another_axis_ends_the_regions(axis: int) -> None:
    result = planned([conv("a"), conv("b"), concat("y", "a", "b", axis=axis)])
    assert [r.output.name for r in result.regions] == ["a", "b"] and not result.reasons


def test_tensor_that_others_read_is_copied() -> None:
    result = planned([conv("a"), conv("b"), concat("c", "a", "b"), conv("y", "c", 12), node("Neg", ["a"], "z")], outputs=["y", "z"])
    assert [r.output.name for r in result.regions] == ["a", "c", "y"]
    assert result.stages[1:3] == ["pointwise a[6] -> c[6]", "conv x[4] -> b[6] 1x1/1x1 pads 0,0,0,0 at 6"]


def test_tensor_that_is_an_output_or_comes_twice_is_copied() -> None:
    result = planned([conv("a"), concat("c", "a", "a"), conv("y", "c", 12)], outputs=["a", "y"])
    assert result.stages[1] == "concat a[6] | a[6] -> c[12]"


def test_copies_that_follow_one_another_share_a_launch() -> None:
    names = [f"t{i}" for i in range(12)]
    nodes = [conv(t) for t in names] + [node("Neg", [t], f"n{t}") for t in names]
    nodes += [conv("a"), concat("c", *names[:10], "a", *names[10:]), conv("y", "c", 78)]
    result = planned(nodes, outputs=["y", *(f"n{t}" for t in names)])
    merged = [s for s in result.stages if "-> c[" in s or "-> a[" in s]
    assert merged == [
        f"concat {' | '.join(f'{t}[6]' for t in names[:8])} -> c[48]",
        "concat t8[6] | t9[6] -> c[12] at 48",
        "conv x[4] -> a[6] 1x1/1x1 pads 0,0,0,0 at 60",
        "concat t10[6] | t11[6] -> c[12] at 66",
    ]


def test_concat_of_a_concat_is_copied() -> None:
    result = planned([conv("a"), conv("b"), concat("c", "a", "b"), conv("d"), concat("y", "c", "d")])
    assert [r.output.name for r in result.regions] == ["c", "y"]
    assert result.stages[2:] == ["pointwise c[12] -> y[12]", "conv x[4] -> d[6] 1x1/1x1 pads 0,0,0,0 at 12"]


MIXED = "Concat: not every input comes from a region of the same type"
SIZES = "Concat: its inputs are not known to have the same height and width"


def test_concat_with_a_tensor_that_no_region_makes() -> None:
    result = planned([conv("a"), node("Erf", ["x"], "e"), concat("y", "a", "e")])
    assert [r.output.name for r in result.regions] == ["a"] and result.reasons == MIXED


def test_concat_of_nothing_of_ours_is_not_spoken_of() -> None:
    result = planned([node("Erf", ["x"], "e"), concat("y", "x", "e")])
    assert not result.regions and not result.reasons


def test_concat_of_sizes_that_are_not_proven_equal() -> None:
    inputs = {"x": ("n", 4, "h", "w"), "v": ("n", 4, "k", "w")}
    result = planned([conv("a"), conv("b", "v"), concat("y", "a", "b")], inputs)
    assert [r.output.name for r in result.regions] == ["a", "b"] and result.reasons == SIZES


def test_concat_of_too_many() -> None:
    result = planned([*(conv(f"t{i}") for i in range(33)), concat("y", *(f"t{i}" for i in range(33)))])
    assert len(result.regions) == 33 and result.reasons == MIXED


BN = {"gamma": weights(11), "beta": weights(11), "mean": weights(11), "var": np.abs(weights(11)) + 1}


def test_each_stage_has_its_slice_of_what_follows_the_concat() -> None:
    nodes = [conv("a", to=5), conv("b"), concat("c", "a", "b"), node("BatchNormalization", ["c", *BN], "d"), node("PRelu", ["d", "slope"], "y")]
    result = planned(nodes, **BN, slope=weights(11, 1, 1))
    assert result.epilogues == ["scale + shift + prelu"] * 2 and result.regions[0].output.name == "y"
    first, second = (stage.epilogue for stage in result.regions[0].stages)
    whole = BN["gamma"] / np.sqrt(BN["var"] + 1e-5)
    np.testing.assert_allclose(np.concatenate([first[0].vector, second[0].vector]), whole, rtol=1e-6)
    np.testing.assert_array_equal(np.concatenate([first[2].vector, second[2].vector]), weights(11, 1, 1).reshape(-1))


def test_what_a_copy_computes_after_a_concat() -> None:
    nodes = [conv("a"), concat("c", "a", "a"), node("Relu", ["c"], "d"), conv("y", "d", 12), node("Neg", ["a"], "z")]
    result = planned(nodes, outputs=["y", "z"])
    assert result.stages[1] == "concat a[6] | a[6] -> c[12] + relu" and result.regions[1].output.name == "d"


def test_operand_after_a_concat_stays_outside() -> None:
    nodes = [conv("a"), conv("b"), concat("c", "a", "b"), node("Relu", ["c"], "d"), node("Add", ["d", "r"], "y")]
    result = planned(nodes, {**X, "r": ("n", 12, 8, 8)})
    assert len(result.regions) == 1 and result.regions[0].output.name == "c"


def test_operand_limit_counts_what_a_stage_has_already() -> None:
    added = [conv("a0"), *(node("Add", [f"a{i}", f"r{i}"], f"a{i + 1}") for i in range(2))]
    nodes = [*added, conv("b", to=5), concat("c", "a2", "b"), node("BatchNormalization", ["c", *BN], "y")]
    result = planned(nodes, {**X, "r0": ("n", 6, 8, 8), "r1": ("n", 6, 8, 8)}, **BN)
    assert result.epilogues == ["add(r0) + add(r1)", ""] and result.regions[0].output.name == "c"


# Pointwise work between regions


def test_pointwise_work_between_regions() -> None:
    nodes = [conv("a"), node("Neg", ["a"], "z"), node("Relu", ["a"], "b"), node("Mul", ["b", "s"], "c"), conv("y", "c", 6)]
    result = planned(nodes, outputs=["y", "z"], s=weights(6, 1, 1))
    assert [r.output.name for r in result.regions] == ["a", "c", "y"] and result.stages[1] == "pointwise a[6] -> c[6] + relu + scale"


def test_sum_of_two_regions() -> None:
    nodes = [
        conv("a"),
        conv("b"),
        node("Neg", ["a"], "z0"),
        node("Neg", ["b"], "z1"),
        node("Add", ["a", "b"], "s"),
        node("Relu", ["s"], "c"),
        conv("y", "c", 6),
    ]
    result = planned(nodes, outputs=["y", "z0", "z1"])
    assert result.stages[2] == "pointwise a[6] -> c[6] + add(b) + relu" and [t.name for t in result.regions[2].inputs] == ["a", "b"]


def test_batchnorm_between_regions() -> None:
    constants = {k: v[:6] for k, v in BN.items()}
    nodes = [conv("a"), node("Neg", ["a"], "z"), node("BatchNormalization", ["a", *BN], "b"), node("Relu", ["b"], "c"), conv("y", "c", 6)]
    assert planned(nodes, outputs=["y", "z"], **constants).stages[1] == "pointwise a[6] -> c[6] + scale + shift + relu"


def test_sum_with_a_tensor_that_no_region_makes_stays() -> None:
    nodes = [conv("a"), node("Neg", ["a"], "z"), node("Add", ["a", "r"], "c"), conv("y", "c", 6)]
    result = planned(nodes, {**X, "r": ("n", 6, 8, 8)}, ["y", "z"])
    assert [r.output.name for r in result.regions] == ["a", "y"]


@pytest.mark.parametrize("last", [node("Relu", ["a"], "y"), node("Add", ["a", "b"], "y"), concat("y", "a", "b")])
def test_what_only_moves_data_to_a_reader_outside_is_dropped(last: NodeProto) -> None:
    nodes = [conv("a"), conv("b"), node("Neg", ["a"], "z0"), node("Neg", ["b"], "z1"), last]
    assert [r.output.name for r in planned(nodes, outputs=["y", "z0", "z1"]).regions] == ["a", "b"]


def test_chain_of_useless_movers_is_dropped_whole() -> None:
    nodes = [conv("a"), node("Neg", ["a"], "z"), node("Relu", ["a"], "b"), node("Neg", ["b"], "v"), node("Sigmoid", ["b"], "c"), node("Erf", ["c"], "y")]
    assert [r.output.name for r in planned(nodes, outputs=["y", "z", "v"]).regions] == ["a"]


# Sub-graphs


def branch(name: str, nodes: list[NodeProto], result: str) -> GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(result, 1, None)])


def test_regions_inside_branches_read_tensors_and_weights_from_outside() -> None:
    branches = {
        f"{name}_branch": branch(name, [node("Conv", ["a", "w6_6"], f"{name}_c"), node("Relu", [f"{name}_c"], f"{name}_r")], f"{name}_r")
        for name in ("then", "else")
    }
    result = planned([conv("a"), node("If", ["flag"], "y", **branches)], {**X, "flag": ()}, w6_6=weights(6, 6, 1, 1))
    assert sorted(r.output.name for r in result.regions) == ["a", "else_r", "then_r"]
    assert result.epilogues == ["", "relu", "relu"]
    outer, *inner = result.plan.regions
    assert outer.nhwc_output and not outer.nchw_output and all(p.nhwc_inputs == {outer.region.output} for p in inner)
    assert all(p.nchw_output and not p.nhwc_output for p in inner)


def test_region_inside_a_loop() -> None:
    body = helper.make_graph(
        [node("Conv", ["v", "w4_4"], "c"), node("Relu", ["c"], "v2"), node("Identity", ["go"], "go2")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", 1, None),
        ],
        [helper.make_tensor_value_info("go2", TensorProto.BOOL, []), helper.make_tensor_value_info("v2", 1, None)],
    )
    loop = node("Loop", ["count", "flag", "x"], "y", body=body)
    result = planned([loop], {**X, "flag": ()}, count=np.array(3), w4_4=weights(4, 4, 1, 1))
    assert result.epilogues == ["relu"] and result.plan.regions[0].nchw_output


def test_labels_of_excluded_regions_are_left_out() -> None:
    result = planned([conv("a"), conv("y", "a", 6)])
    args = result.view, result.shapes, "match", result.pricing
    assert [p.region.label for p in plan_regions(*args, excluded={"Conv(a)": "it failed"}, take_all=True).regions] == ["Conv(y)"]
    assert [p.region.label for p in plan_regions(*args, only={"Conv(a)"}).regions] == ["Conv(a)"]


# Borders


def test_layouts_at_the_borders() -> None:
    nodes = [conv("a"), conv("b", "a", 6), node("Neg", ["b"], "z"), conv("y", "b", 6)]
    result = planned(nodes, outputs=["y", "z"])
    borders = [({t.name for t in p.nhwc_inputs}, p.nhwc_output, p.nchw_output) for p in result.plan.regions]
    assert borders == [(set(), True, False), ({"a"}, True, True), ({"b"}, False, True)]


def test_regions_of_other_types_meet_channels_first() -> None:
    nodes = [node("Conv", ["x", "w"], "a"), node("Cast", ["a"], "h", to=TensorProto.FLOAT16), node("Conv", ["h", "v"], "y")]
    m = model(nodes, X, ["y"], {"w": weights(6, 4, 1, 1), "v": weights(6, 6, 1, 1, dtype=np.float16)}, dtypes={"y": TensorProto.FLOAT16})
    result = plan(m)
    assert [(r.compute, p.nhwc_output, p.nchw_output) for r, p in zip(result.regions, result.plan.regions, strict=True)] == [
        ("tf32", False, True),
        ("f16", False, True),
    ]


def test_text_of_a_region_is_stable() -> None:
    result = planned([conv("a", to=3), node("Relu", ["a"], "r"), conv("b", to=5), concat("y", "r", "b")])
    assert str(result.regions[0]) == ("region y[8] tf32\n  conv x[4] -> r[3] 1x1/1x1 pads 0,0,0,0 + relu\n  conv x[4] -> b[5] 1x1/1x1 pads 0,0,0,0 at 3")
