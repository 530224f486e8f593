"""Matrix products by constant weights: what becomes a node and what does not, and the answers of plans, kernels and function bodies."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from emulator import Emulator, available
from end_to_end import assert_right, optimized
from lowering_harness import relative
from matmul_cases import FLOAT, HALF, ROWS, inputs_of, linear, lower, random_product
from oplib import library
from plan_harness import plan
from rule_harness import model, node, run, weights
from tilewright.optimizer.plan.cost import GemmShape
from tilewright.optimizer.plan.regions.tiles import candidates, choose_tile
from tilewright.optimizer.target import device
from twins import run_plan

BOUND = {HALF: 2e-3, FLOAT: 1e-5}


BIAS = (node("Add", ["y", "b"], "out"),)


@pytest.mark.parametrize(("tail", "epilogue"), [
    ((), ""),
    (BIAS, "shift"),
    ((node("Add", ["b", "y"], "z"), node("Relu", ["z"], "out")), "shift + relu"),
    ((node("Add", ["y", "b"], "z"), node("Add", ["z", "r"], "out")), "shift + add(r)"),
    ((node("Mul", ["y", "r"], "z"), node("Sigmoid", ["z"], "out")), "mul(r) + sigmoid"),
    ((node("Add", ["y", "one"], "out"),), "affine(1,1)"),
    ((node("Softmax", ["y"], "out"),), ""),
])  # fmt: skip
def test_what_is_fused(tail, epilogue):
    planned = plan(linear(tail=tail))
    assert planned.epilogues == [epilogue] and planned.regions[0].axis == -1 and "x[16] -> " in planned.stages[0]


def test_a_bias_along_the_rows_is_none_of_the_channels():
    constants = {"w": weights(8, 5), "b": weights(5, 1)}
    planned = plan(model([node("MatMul", ["x", "w"], "y"), node("Add", ["y", "b"], "out")], {"x": (5, 8)}, ["out"], constants))
    assert planned.epilogues == [""]


@pytest.mark.parametrize(("made", "reason"), [
    (linear(dtype=HALF, depth=15), "its depth 15 is odd"),
    (linear(op="Gemm", transA=1, depth=16, columns=24), "its first factor is transposed"),
    (linear(op="Gemm", alpha=2.0), "it scales the product"),
    (linear(op="Gemm", beta=2.0), "it scales the addend"),
    (model([node("MatMul", ["x", "z"], "y")], {"x": ("N", 8), "z": (8, 8)}, ["y"]), "its second factor is no constant"),
    (model([node("MatMul", ["w", "x"], "y")], {"x": (8, "N")}, ["y"], {"w": weights(8, 8)}), "its first factor is a constant"),
    (model([node("MatMul", ["x", "w"], "y")], {"x": ("N", 8)}, ["y"], {"w": weights(3, 8, 8)}), "its weights have rank 3"),
    (model([node("MatMul", ["x", "w"], "y")], {"x": (8,)}, ["y"], {"w": weights(8, 8)}), "its input is a vector"),
    (model([node("MatMul", ["x", "w"], "y")], {"x": ("N", 8)}, ["y"], {"w": weights(8, 8, dtype=np.float64)}, dtype=TensorProto.DOUBLE), "element type double"),
])  # fmt: skip
def test_refusals(made, reason):
    planned = plan(made)
    assert not planned.regions and reason in planned.reasons and planned.plan.refusals[0].rule == "matmul"


def test_precision_and_passes():
    assert "precision fp32" in plan(linear(), precision="fp32").reasons
    assert [r.axis for r in plan(linear()).regions] == [-1]


@pytest.mark.parametrize("chunk", range(4))
def test_random_products(chunk):
    """Planned once with symbolic rows, run at several by the numpy twins, against ONNX Runtime; the op library takes each plan."""
    for seed in range(20 * chunk, 20 * chunk + 20):
        product = random_product(seed)
        lowered = lower(plan(product.made))
        named = lowered.plan.map_images({name: f"{i:064x}" for i, name in enumerate(lowered.plan.images)})
        assert library().check_plan(named.to_text()) == ""
        for rows in ROWS:
            feeds = product.feeds(rows, np.random.default_rng(seed))
            (want,) = run(product.made, feeds)
            (got,) = run_plan(lowered.plan, lowered.specs, inputs_of(lowered, feeds))
            assert relative(got, want) < BOUND[product.dtype], (seed, rows, product.depth, product.columns)


@pytest.mark.skipif(not available(), reason="needs g++")
def test_kernels_on_unpadded_rows(tmp_path):
    """The kernels themselves, emulated: pitches that no vector divides, copies of 4 and 8 bytes."""
    products = [random_product(seed) for seed in range(100, 108)]
    assert {p.depth % 8 for p in products} > {0} and {p.columns % 2 for p in products} == {0, 1}
    lowered = [lower(plan(p.made)) for p in products]
    emulator = Emulator([s for one in lowered for s in one.specs.values()], tmp_path)
    for product, one in zip(products, lowered, strict=True):
        feeds = product.feeds((3, 5), np.random.default_rng(1))
        (want,) = run(product.made, feeds)
        (got,) = emulator.run_plan(one.plan, one.specs, inputs_of(one, feeds), late=True)
        assert relative(got, want) < 3e-3, (product.depth, product.columns)


@pytest.mark.parametrize("compute", ["f16", "tf32"])
def test_narrow_copies_get_tiles_with_registers_left(compute):
    wide, narrow = list(candidates(compute)), list(candidates(compute, narrow=True))
    assert len(narrow) < len(wide) and all(t.block_m * t.block_n <= 64 * 32 * t.warps_m * t.warps_n for t in narrow)
    large = GemmShape(4096, 4096, 4098)
    assert choose_tile(device("h200"), compute, large) not in narrow and choose_tile(device("h200"), compute, large, narrow=True) in narrow


def block(dtype: int) -> ModelProto:
    """Two layers with a residual, of rows whose number is open."""
    numpy_type = np.float16 if dtype == HALF else np.float32
    constants = {"w1": weights(32, 48, dtype=numpy_type), "b1": weights(48, seed=1, dtype=numpy_type), "w2": weights(48, 32, seed=2, dtype=numpy_type)}
    nodes = [
        node("MatMul", ["x", "w1"], "h"), node("Add", ["h", "b1"], "hb"), node("Relu", ["hb"], "a"),
        node("MatMul", ["a", "w2"], "p"), node("Add", ["p", "x"], "out"),
    ]  # fmt: skip
    return model(nodes, {"x": ("N", "L", 32)}, ["out"], constants, dtype=dtype)


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_end_to_end(dtype, tmp_path):
    done = optimized(block(dtype), tmp_path)
    assert [n.op_type.split("_")[0] for n in done.after.graph.node] == ["PolyMatMul", "PolyMatMul"]
    rng = np.random.default_rng(0)
    for rows in [*ROWS, (2, 0)]:
        assert_right(done, {"x": rng.standard_normal((*rows, 32)).astype(np.float16 if dtype == HALF else np.float32)}, BOUND[dtype])


def test_passes_leave_them_alone(tmp_path):
    done = optimized(block(FLOAT), tmp_path, passes=("canonicalize", "regions"))
    assert done.regions == 0


def test_beside_a_convolution(tmp_path):
    """A classifier: the images' nodes and the matrix product are of two kinds, and what lies between them has the model's own layout."""
    constants = {"k": weights(8, 3, 3, 3), "w": weights(8, 10, seed=1), "b": weights(10, seed=2)}
    nodes = [
        node("Conv", ["x", "k"], "c", pads=[1, 1, 1, 1]), node("Relu", ["c"], "a"), node("GlobalAveragePool", ["a"], "g"), node("Flatten", ["g"], "f"),
        node("Gemm", ["f", "w", "b"], "out"),
    ]  # fmt: skip
    done = optimized(model(nodes, {"x": ("N", 3, 9, 9)}, ["out"], constants), tmp_path)
    kinds = [n.op_type.split("_")[0] for n in done.after.graph.node]
    assert kinds == ["FusedConvRegion", "FusedConvRegion", "Flatten", "PolyMatMul"]
    assert_right(done, {"x": np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)})
