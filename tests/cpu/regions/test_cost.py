"""Prices by hand: rooflines, ONNX Runtime's own kernels, our stages, whole regions, the nodes that no region takes, and sizes for symbolic dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy

from corpus.case import parsed
from plan_harness import plan
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.plan.cost import GemmShape, memory_us, streaming_us, vendor_conv_us, vendor_matmul_us
from tilewright.optimizer.plan.model_cost import nodes_us
from tilewright.optimizer.plan.regions.price import Pricing
from tilewright.optimizer.plan.regions.region import Region
from tilewright.optimizer.plan.regions.tiles import choose_tile, tile_us
from tilewright.optimizer.plan.sizes import Sizes
from tilewright.optimizer.target import device

# Round numbers: 10 MB of L2 of which 6 MB count, 2000 GB/s from it and 1000 GB/s from memory, a launch of 1 us.
ROUND = replace(
    device("h200"), sms=100, l2_bytes=10**7, l2_gbs=2000.0, dram_gbs=1000.0, launch_us=1.0, vendor_floor_us=5.0, conv_start_us=9.0, conv_efficiency=0.5,
    vendor_tflops={"f16": 200.0, "tf32": 100.0}, mma_tflops={"f16": 100.0, "tf32": 50.0},
)  # fmt: skip

# ---- cost.py


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 0.0), (2e6, 1.0), (6e6, 3.0), (6.1e6, 6.1), (1e9, 1000.0)])
def test_bytes_come_from_the_l2_where_they_fit(nbytes: float, expected: float) -> None:
    assert memory_us(ROUND, nbytes) == pytest.approx(expected)


def test_a_kernel_that_only_moves_bytes() -> None:
    assert streaming_us(ROUND, 2e6) == pytest.approx(1.0 + 0.35 + 1.0 / 0.8)
    assert streaming_us(ROUND, 0) == pytest.approx(1.35), "a launch and a kernel's floor"


def test_operations_count_a_multiply_add_twice() -> None:
    assert GemmShape(3, 5, 7, 2).flops == 2 * 3 * 5 * 7 * 2


@pytest.mark.parametrize(("shape", "nbytes", "expected"), [
    (GemmShape(10_000, 1000, 100), 2e6, 1 + 9 + 0.3 + 2e9 / (100e6)),  # 2 GFLOP at half of 200 TFLOP/s
    (GemmShape(100, 10, 100), 2e6, 1 + 9 + 0.3 + 1.0),  # nothing but bytes
    (GemmShape(1000, 1, 9, 64), 2e6, 1 + 1 + 1.0),  # depthwise
    (GemmShape(100, 8, 1000, 4), 2e6, 1 + 9 + 3 + 1.0),  # grouped: like any other, deep
])  # fmt: skip
def test_a_convolution_of_the_vendor(shape: GemmShape, nbytes: float, expected: float) -> None:
    assert vendor_conv_us(ROUND, "f16", shape, nbytes) == pytest.approx(expected)


@pytest.mark.parametrize(("shape", "nbytes", "expected"), [
    (GemmShape(1280, 1280, 1000), 2e6, 1 + 2 * 1280 * 1280 * 1000 / 200e6),  # 100 tiles on 100 SMs
    (GemmShape(8, 8, 8), 1e3, 1 + 5),  # the floor
    (GemmShape(128, 256, 100_000), 2e6, 1 + 2 * 128 * 256 * 100_000 / 200e6 / 0.08),  # 2 tiles, split in four: 8 of 100 SMs
    (GemmShape(1280, 1280, 10), 1e8, 1 + 100.0),  # bytes
])  # fmt: skip
def test_a_matmul_of_the_vendor(shape: GemmShape, nbytes: float, expected: float) -> None:
    assert vendor_matmul_us(ROUND, "f16", shape, nbytes) == pytest.approx(expected)


def test_the_vendor_is_never_cheaper_with_more_to_do() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        m, n, k = (int(v) for v in 2 ** rng.uniform(0, 13, 3))
        nbytes, more = float(2 ** rng.uniform(0, 28)), int(2 ** rng.uniform(0, 8))
        for price in (vendor_conv_us, vendor_matmul_us):
            assert price(ROUND, "tf32", GemmShape(m, n, k + more), nbytes) >= price(ROUND, "tf32", GemmShape(m, n, k), nbytes)
            assert price(ROUND, "tf32", GemmShape(m, n, k), nbytes) >= price(ROUND, "f16", GemmShape(m, n, k), nbytes)


# ---- price.py


def only_region(text: str, constants: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> tuple[Pricing, Region]:
    """The one region of a model, and prices on the GPU of round numbers."""
    planned = plan(parsed(text, constants), sizes=sizes)
    (region,) = planned.regions
    return Pricing(ROUND, planned.pricing.sizes), region


def half(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float16)


CONV = "g (float16[2,16,32,30] x) => (float16[2,24,16,15] y) { y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w) }"


def test_a_convolution_of_ours() -> None:
    price, region = only_region(CONV, {"w": half(24, 16, 3, 3)})
    (stage,) = region.stages
    assert price.pixels(stage, 4) == (2 * 32 * 30, 2 * 16 * 15)
    shape = price.gemm(stage, 4)
    assert shape == GemmShape(480, 24, 144)
    assert price.bytes(stage, region) == 2 * (1920 * 16 + 480 * 24 + 24 * 16 * 9)
    expected = 1.25 + 0.8 * (tile_us(ROUND, "f16", shape, choose_tile(ROUND, "f16", shape)) - 1.6)
    assert price.stage_us(stage, region) == pytest.approx(expected), "a small one is as fast as its tile"
    assert price.ours_us(region, 0) == pytest.approx(expected + 0.75)
    change = 0.35 + memory_us(ROUND, 2 * 480 * 24 * 2) / 0.8 + 0.75
    assert price.ours_us(region, 2) == pytest.approx(expected + 0.75 + 2 * change)


def test_a_large_convolution_of_ours_runs_at_the_sustained_rate() -> None:
    price, region = only_region("g (float16[64,256,56,56] x) => (float16[64,256,56,56] y) { y = Conv<pads=[1,1,1,1]>(x, w) }", {"w": half(256, 256, 3, 3)})
    flops = 2 * 64 * 56 * 56 * 256 * 256 * 9
    assert price.stage_us(region.stages[0], region) >= 1.25 + flops / (100e6 * 0.22)


def test_convolutions_on_cuda_cores() -> None:
    price, region = only_region("g (float16[1,16,8,8] x) => (float16[1,16,8,8] y) { y = Conv<pads=[1,1,1,1], group=16>(x, w) }", {"w": half(16, 1, 3, 3)})
    (stage,) = region.stages
    assert price.gemm(stage, 4) == GemmShape(64, 1, 9, 16)
    nbytes = 2 * (64 * 16 * 2 + 16 * 9)
    assert price.bytes(stage, region) == nbytes
    assert price.stage_us(stage, region) == pytest.approx(0.35 + max(2 * 64 * 16 * 9 / 12.5e6, memory_us(ROUND, nbytes)))


@pytest.mark.parametrize(("op", "output", "pixels"), [
    ("MaxPool<kernel_shape=[3,3], strides=[2,2]>(x)", (2, 8, 3, 4), 3 * 4),
    ("MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)", (2, 8, 4, 4), 4 * 4),
    ('MaxPool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(x)', (2, 8, 4, 5), 4 * 5),
    ("AveragePool<kernel_shape=[3,2], pads=[1,0,1,1]>(x)", (2, 8, 8, 9), 8 * 9),
    ("GlobalAveragePool(x)", (2, 8, 1, 1), 1),
])  # fmt: skip
def test_poolings(op: str, output: tuple[int, ...], pixels: int) -> None:
    dims = ",".join(map(str, output))
    price, region = only_region(f"g (float16[2,8,8,9] x) => (float16[{dims}] y) {{ y = {op} }}", {})
    (stage,) = region.stages
    assert price.pixels(stage, 4) == (2 * 72, 2 * pixels)
    assert price.stage_us(stage, region) == pytest.approx(0.35 + memory_us(ROUND, 2 * 8 * 2 * (72 + pixels)))
    assert price.vendor_us(region) == pytest.approx(streaming_us(ROUND, 2 * 8 * 2 * (72 + pixels)))


def test_sequences_have_height_one() -> None:
    price, region = only_region("g (float16[2,16,100] x) => (float16[2,8,50] y) { y = Conv<pads=[1,1], strides=[2]>(x, w) }", {"w": half(8, 16, 3)})
    assert price.pixels(region.stages[0], 3) == (200, 100) and price.gemm(region.stages[0], 3) == GemmShape(100, 8, 48)


TENSOR = 2 * 64 * 8  # bytes of one [1, 8, 8, 8] in float16


@pytest.mark.parametrize(("tail", "extra"), [
    ("y = Relu(c)", 0.0),  # ONNX Runtime fuses it
    ("y = Add(c, x)", 0.0),
    ("s = Add(c, x)  y = Relu(s)", 0.0),
    ("y = Tanh(c)", streaming_us(ROUND, 2 * TENSOR)),
    ("s = Sigmoid(c)  y = Mul(c, s)", 2 * streaming_us(ROUND, 2 * TENSOR)),  # two nodes
    ("y = Mul(c, x)", streaming_us(ROUND, 3 * TENSOR)),
    ("a = Tanh(c)  y = Relu(a)", 2 * streaming_us(ROUND, 2 * TENSOR)),  # the Relu follows no convolution
    ("r = Relu(c)  y = Add(r, x)", streaming_us(ROUND, 3 * TENSOR)),
])  # fmt: skip
def test_epilogues_of_the_vendor(tail: str, extra: float) -> None:
    text = f"g (float16[1,8,8,8] x) => (float16[1,8,8,8] y) {{ c = Conv<pads=[1,1,1,1]>(x, w)  {tail} }}"
    price, region = only_region(text, {"w": half(8, 8, 3, 3)})
    (stage,) = region.stages
    bare = vendor_conv_us(ROUND, "f16", GemmShape(64, 8, 72), price.bytes(stage, region))
    assert price.vendor_us(region) == pytest.approx(bare + extra)


def test_an_operand_counts_as_bytes_and_a_gate_does_not() -> None:
    body = "c = Conv<pads=[1,1,1,1]>(x, w)  y = {}"
    inputs = "float16[1,8,8,8] x, float16[1,8,8,8] r, float16[1,8,1,1] gate"
    sizes = []
    for tail in ("Relu(c)", "Add(c, r)", "Mul(c, gate)"):
        price, region = only_region(f"g ({inputs}) => (float16[1,8,8,8] y) {{ {body.format(tail)} }}", {"w": half(8, 8, 3, 3)})
        sizes.append(price.bytes(region.stages[0], region))
    assert [s - sizes[0] for s in sizes] == [0, TENSOR, 0]


def test_a_concat_inside_a_region_is_free_for_us_alone() -> None:
    text = """g (float16[1,8,8,8] x) => (float16[1,16,8,8] y) {
      a = Conv<pads=[1,1,1,1]>(x, w)  b = Conv<pads=[1,1,1,1]>(x, v)  y = Concat<axis=1>(a, b)
    }"""
    price, region = only_region(text, {"w": half(8, 8, 3, 3), "v": half(8, 8, 3, 3)})
    assert len(region.stages) == 2 and region.joints
    parts = [vendor_conv_us(ROUND, "f16", GemmShape(64, 8, 72), price.bytes(s, region)) for s in region.stages]
    assert price.vendor_us(region) == pytest.approx(sum(parts) + streaming_us(ROUND, 2 * 2 * TENSOR))
    assert price.ours_us(region, 0) == pytest.approx(sum(price.stage_us(s, region) + 0.75 for s in region.stages))


def test_a_matrix_product() -> None:
    price, region = only_region("g (float16[4,30,64] x) => (float16[4,30,96] y) { y = MatMul(x, w) }", {"w": half(64, 96)})
    (stage,) = region.stages
    assert price.gemm(stage, 3) == GemmShape(120, 96, 64)
    nbytes = price.bytes(stage, region)
    assert nbytes == 2 * (120 * 64 + 120 * 96 + 64 * 96)
    assert price.vendor_us(region) == pytest.approx(vendor_matmul_us(ROUND, "f16", GemmShape(120, 96, 64), nbytes))


def test_one_tile_where_sizes_are_fixed_and_a_ladder_where_they_are_not() -> None:
    fixed, region = only_region(CONV, {"w": half(24, 16, 3, 3)})
    assert len(fixed.tiles(region.stages[0], "f16", 4)) == 1
    for dims in ("n,16,32,30", "2,16,h,30"):
        price, region = only_region(CONV.replace("2,16,32,30", dims).replace("2,24,16,15", "?,24,?,15"), {"w": half(24, 16, 3, 3)})
        ladder = price.tiles(region.stages[0], "f16", 4)
        assert len(ladder) > 1 and ladder[-1][0] is None


# ---- sizes.py


def sizes_of(text: str, bindings: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    """Sizes of every tensor by name."""
    view = View(parsed(text, {"w": (8, 3, 3, 3)}))
    shapes = infer(view)
    sizes = Sizes(shapes, bindings or {})
    tensors = [*view.graph.inputs, *(t for n in view.graph.nodes for t in n.outputs)]
    return {t.name: sizes.of(t, shapes.rank(t) or 4) for t in tensors}


DYNAMIC = "g (float[N,3,H,W] x) => (float[?,8,?,?] y) { c = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w)  y = Relu(c) }"


@pytest.mark.parametrize(("bindings", "x", "y"), [
    ({}, (1, 3, 224, 224), (1, 8, 112, 112)),
    ({"N": 4}, (4, 3, 224, 224), (4, 8, 112, 112)),
    ({"N": 2, "H": 31, "W": 64}, (2, 3, 31, 64), (2, 8, 16, 32)),
    ({"Q": 9}, (1, 3, 224, 224), (1, 8, 112, 112)),
])  # fmt: skip
def test_symbols_take_the_usual_size_or_a_default(bindings: Mapping[str, int], x: tuple[int, ...], y: tuple[int, ...]) -> None:
    got = sizes_of(DYNAMIC, bindings)
    assert (got["x"], got["c"], got["y"]) == (x, y, y)


def test_fixed_dims_stay_and_empty_ones_count_as_one() -> None:
    assert sizes_of("g (float[0,3,5,7] x) => (float[0,3,5,7] y) { y = Relu(x) }")["y"] == (1, 3, 5, 7)


def test_what_is_not_known_has_a_default() -> None:
    view = View(parsed("g (float[N,3,4,4] x) => (float[?] y) { y = com.Unknown(x) }", domains=', "com": 1'))
    shapes = infer(view)
    sizes = Sizes(shapes, {})
    assert sizes.of(view.graph.nodes[0].outputs[0], 4) == (1, 28, 28, 28)
    assert sizes.number(sympy.Symbol("unheard_of")) == 28
    assert sizes.number(sympy.Symbol("u", integer=True) - 100) == 1, "never below one"


# ---- model_cost.py


def rest_us(text: str, constants: Mapping[str, Any] | None = None) -> float:
    view = View(parsed(text, constants))
    shapes = infer(view)
    return nodes_us(ROUND, view, shapes, Sizes(shapes, {}), ())


def test_nodes_that_no_region_takes() -> None:
    shape = "float[10,100,100] x"
    assert rest_us(f"g ({shape}) => (float[10,100,100] y) {{ y = Neg(x) }}") == pytest.approx(streaming_us(ROUND, 2 * 4e5))
    assert rest_us("g (float16[10,100,100] x) => (float16[10,100,100] y) { y = Neg(x) }") == pytest.approx(streaming_us(ROUND, 2 * 2e5))
    assert rest_us(f"g ({shape}) => (float[?] y) {{ k = Constant<value_ints=[-1]>()  y = Reshape(x, k) }}") == 0.0, "views and constants are free"
    product = vendor_matmul_us(ROUND, "tf32", GemmShape(1000, 50, 100), 4 * (1e5 + 5000 + 5e4))
    assert rest_us(f"g ({shape}) => (float[10,100,50] y) {{ y = MatMul(x, w) }}", {"w": (100, 50)}) == pytest.approx(product)
    conv = vendor_conv_us(ROUND, "tf32", GemmShape(2 * 36, 5, 36), 4 * (2 * 4 * 64 + 5 * 36 + 2 * 5 * 36))
    assert rest_us("g (float[2,4,8,8] x) => (float[2,5,6,6] y) { y = Conv(x, w) }", {"w": (5, 4, 3, 3)}) == pytest.approx(conv)


def test_transposed_grouped_and_depthwise() -> None:
    product = vendor_matmul_us(ROUND, "tf32", GemmShape(70, 50, 1000), 4 * (70_000 + 50_000 + 3500))
    assert rest_us("g (float[1000,70] x) => (float[70,50] y) { y = Gemm<transA=1>(x, w) }", {"w": (1000, 50)}) == pytest.approx(product)
    grouped = vendor_conv_us(ROUND, "tf32", GemmShape(36, 2, 18, 2), 4 * (4 * 64 + 4 * 18 + 4 * 36))
    assert rest_us("g (float[1,4,8,8] x) => (float[1,4,6,6] y) { y = Conv<group=2>(x, w) }", {"w": (4, 2, 3, 3)}) == pytest.approx(grouped)
    transposed = vendor_conv_us(ROUND, "tf32", GemmShape(64, 6 * 4, 4), 4 * (4 * 64 + 4 * 6 * 4 + 6 * 256))
    text = "g (float[1,4,8,8] x) => (float[1,6,16,16] y) { y = ConvTranspose<strides=[2,2]>(x, w) }"
    assert rest_us(text, {"w": (4, 6, 2, 2)}) == pytest.approx(transposed)
    depthwise = vendor_conv_us(ROUND, "tf32", GemmShape(36, 1, 9, 4), 4 * (4 * 64 + 36 + 4 * 36))
    assert rest_us("g (float[1,4,8,8] x) => (float[1,4,6,6] y) { y = Conv<group=4>(x, w) }", {"w": (4, 1, 3, 3)}) == pytest.approx(depthwise)


def test_nodes_of_regions_are_not_counted_twice() -> None:
    view = View(parsed("g (float[10,100] x) => (float[10,100] y) { t = Neg(x)  y = Abs(t) }"))
    shapes = infer(view)
    sizes = Sizes(shapes, {})
    everything, one = (nodes_us(ROUND, view, shapes, sizes, taken) for taken in ((), view.graph.nodes[:1]))
    assert one == pytest.approx(everything / 2) and nodes_us(ROUND, view, shapes, sizes, view.graph.nodes) == 0
