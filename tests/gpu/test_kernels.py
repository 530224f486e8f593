"""Every kernel template on a GPU against the numpy twins: some 650 seeded cases, each output started as NaN and fenced with guard bands.

All kernels are compiled first, by as many processes as there are processors; the cubins are kept in pytest's cache folder for the next run.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

import kernel_cases
import plan_builder
import twins
from gpu.codes import Codes
from gpu.driver import Gpu, check, pack_args
from kernel_cases import Case
from plans import relative_error, resolve
from tilewright import kernels_ptx
from tilewright.optimizer.launch import Output, arg_in, arg_out, arg_scratch, const
from tilewright.optimizer.lower import kernels
from tilewright.optimizer.lower.pack import pack

pytestmark = pytest.mark.gpu

BOUND = 1e-3  # relative Frobenius error against float64
CASES = list(kernel_cases.cases(small=False)) + list(kernel_cases.cases(small=True))[::4]


@pytest.fixture(scope="module")
def codes(gpu, request) -> Codes:
    result = Codes(gpu.arch, request.config.cache.mkdir("kernels"))
    selected = {item.callspec.params["case"] for item in request.session.items if hasattr(item, "callspec") and "case" in item.callspec.params}
    start = time.perf_counter()
    failed = result.compile_ahead(spec for case in selected for spec in case.make().specs.values())
    print(f"{len(result)} kernels compiled for {gpu.arch} in {time.perf_counter() - start:.0f} s; {len(failed)} failed", *failed[:3], sep="\n", file=sys.stderr)
    return result


def assert_same(got: np.ndarray, want: np.ndarray, where: object) -> None:
    """Within the bound; what the twin left alone is untouched, and what it made zero (padding channels) is zero."""
    error = relative_error(got, want)
    words = {2: np.uint16, 4: np.uint32}[want.dtype.itemsize]
    untouched = want.view(words) == np.iinfo(words).max
    assert np.array_equal(got.view(words)[untouched], want.view(words)[untouched]), f"{where}: wrote elements that are not its own"
    assert error < BOUND, f"{where}: relative error {error}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, gpu: Gpu, codes: Codes):
    made = case.make()
    (want,) = twins.run_plan(made.plan, made.specs, made.inputs, gpu.sms)
    (got,) = gpu.run_plan(made.plan, made.specs, codes, made.inputs)
    where = f"{case} {dict(case.options)}"
    assert_same(got, want, where)
    last = made.plan.launches[-1]
    names = [name for name, _ in kernels_ptx.template_args(next(reversed(made.specs.values())).template)]
    numbers = {name: arg.offset.evaluate([a.shape for a in made.inputs], gpu.sms) for name, arg in zip(names, last.args, strict=True) if arg.kind == "i32"}
    if "y_zero_to" in numbers:
        first = numbers["y_offset"] + (numbers["channels"] if "channels" in numbers else numbers["groups"] * numbers["cout_g"])
        assert not got[..., first : numbers["y_zero_to"]].any(), f"{where}: padding channels are not zero"


def chain(rng: np.random.Generator, dtype: str) -> plan_builder.Made:
    """Layout, convolution, pooling, split convolution with a residual, gate from a global pool, layout: nine launches that each need the one before."""
    plan = plan_builder.Plan(dtype, rng)
    element, unit = (2, 8) if dtype == "f16" else (4, 4)
    n, c, size, mid = 3, 3, 33, 24
    t, lanes = {"TYPE": kernels.element_type(dtype)}, {"LANES": 4, "THREADS": 128}
    x = plan.input(rng.standard_normal((n, c, size, size)).astype(np.float32))
    pooled = (size + 2 - 3) // 2 + 1
    rows, small = n * size * size, n * pooled * pooled
    for count in (rows * unit, rows * mid, small * mid, small * mid, n * mid, n * mid, small * mid):
        plan.scratch.append(count * element)
    plan.scratch.append(4 * small * mid * 4)
    image, first, pool, second, mean, gate, gated, parts = (arg_scratch(i) for i in range(8))
    plan.launch(
        "layout",
        {**t, "OTHER": kernels.TF32, "TO_NHWC": True, "TILE_C": 0},
        {"x": x, "y": image, "batch": n, "h": size, "w": size, "channels": c, "pitch": unit, "offset": 0, "zero_to": unit},
        pdl=True,
    )
    relu, empty = kernels.epilogue([kernels.op("Relu")]), kernels.epilogue()
    tile = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 128 // element, "WARPS_M": 2, "WARPS_N": 1, "STAGES": 3, "VEC": unit, "POINTWISE": False}
    same = {"kh": 3, "kw": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1, "dil_h": 1, "dil_w": 1}
    y = {"y_pitch": mid, "y_offset": 0}

    def filters(inputs: int, padded: int, kernel: int):
        weight = rng.standard_normal((mid, inputs, kernel, kernel)) / np.sqrt(inputs * kernel * kernel)
        return plan.input(pack(weight.astype(plan_builder.DTYPE[dtype]), "ohwi", padded))

    conv = {"x": image, "x_pitch": unit, "weight": filters(c, unit, 3), "y": first, **y, "batch": n, "groups": 1, "cin_g": unit, "cout_g": mid}
    plan.launch("conv_igemm", {**t, **tile, "SPLIT_K": 1, "EPILOGUE": relu}, {**conv, **same, "h": size, "w": size, "p": size, "q": size}, pdl=True)
    places = {"h": size, "w": size, "p": pooled, "q": pooled, **same, "stride_h": 2, "stride_w": 2, "pad_end_h": 1, "pad_end_w": 1}
    maximum = {**t, "KIND": 0, "KERNEL_H": 3, "KERNEL_W": 3, **lanes, "EPILOGUE": empty}
    plan.launch("pool", maximum, {"x": first, "x_pitch": mid, "y": pool, **y, "batch": n, "channels": mid, **places}, pdl=True)
    split = {"workspace": parts, "ws_pitch": mid}
    conv = {"x": pool, "x_pitch": mid, "weight": filters(mid, mid, 3), "batch": n, "groups": 1, "cin_g": mid, "cout_g": mid, **y}
    plan.launch(
        "conv_igemm", {**t, **tile, "SPLIT_K": 4, "EPILOGUE": empty}, {**conv, **split, **same, "h": pooled, "w": pooled, "p": pooled, "q": pooled}, pdl=True
    )
    residual = {"EPILOGUE": kernels.epilogue([kernels.op("AddFull", 0), kernels.op("Relu")])}
    grid = {"batch": n, "p": pooled, "q": pooled, "channels": mid}
    plan.launch("splitk_reduce", {**t, "SPLIT_K": 4, **lanes, **residual}, {**split, "y": second, **y, **grid, "e0": pool, "e0_pitch": mid}, pdl=True)
    average = {**t, "MAXIMUM": False, **lanes, "EPILOGUE": empty}
    plan.launch("global_pool", average, {"x": second, "x_pitch": mid, "y": mean, **y, "batch": n, "h": pooled, "w": pooled, "channels": mid}, pdl=True)
    one = {"h": 1, "w": 1, "p": 1, "q": 1, **same, "kh": 1, "kw": 1, "pad_h": 0, "pad_w": 0}
    sigmoid = kernels.epilogue([kernels.op("Sigmoid")])
    squeeze = {"x": mean, "x_pitch": mid, "weight": filters(mid, mid, 1), "y": gate, **y, "batch": n, "groups": 1, "cin_g": mid, "cout_g": mid, **one}
    plan.launch("conv_igemm", {**t, **tile, "POINTWISE": True, "SPLIT_K": 1, "EPILOGUE": sigmoid}, squeeze, pdl=True)
    scale = {"EPILOGUE": kernels.epilogue([kernels.op("MulGate", 0)])}
    plan.launch("pointwise", {**t, "ROWS": 2, **lanes, **scale}, {"x": second, "x_pitch": mid, "y": gated, **y, **grid, "e0": gate, "e0_pitch": mid}, pdl=True)
    plan.outputs.append(Output("f32", tuple(map(const, (n, mid, pooled, pooled)))))
    back = {"x": gated, "y": arg_out(0), "batch": n, "h": pooled, "w": pooled, "channels": mid, "pitch": mid, "offset": 0}
    plan.launch("layout", {**t, "OTHER": kernels.TF32, "TO_NHWC": False, "TILE_C": 32}, back, pdl=True)
    return plan.done()


@pytest.mark.parametrize("dtype", ["f16", "tf32"])
def test_chain_with_programmatic_launches(dtype, gpu, codes):
    """The same bits with and without programmatic dependent launch, twenty times, and the twins' result."""
    made = chain(np.random.default_rng(5), dtype)
    (want,) = twins.run_plan(made.plan, made.specs, made.inputs, gpu.sms)
    (plain,) = gpu.run_plan(made.plan, made.specs, codes, made.inputs)
    assert relative_error(plain, want) < 3 * BOUND
    for _ in range(20):
        (early,) = gpu.run_plan(made.plan, made.specs, codes, made.inputs, pdl=True)
        assert np.array_equal(early, plain)


LARGE_SIDE = 4112  # 4112 x 4112 pixels of 128 channels are 2^31 elements and some more


@pytest.mark.parametrize("pointwise", [True, False])
@pytest.mark.parametrize("dtype", ["f16", "tf32"])
def test_large_tensors(dtype, pointwise, gpu, codes):
    """More than 2^31 elements in x and in y; the first, the last and some pixels between are not zero and are compared."""
    rng, channels, rows = np.random.default_rng(0), 128, LARGE_SIDE**2
    storage = np.dtype(plan_builder.DTYPE[dtype])
    unit = plan_builder.UNIT[dtype]
    block = rng.standard_normal((1000, channels)).astype(storage)
    weight = (rng.standard_normal((channels, channels, 1, 1)) / np.sqrt(channels)).astype(storage)
    plan = plan_builder.Plan(dtype, rng)
    plan.outputs.append(Output(plan_builder.TENSOR[dtype], (const(rows), const(channels))))
    place = {"h": LARGE_SIDE, "w": LARGE_SIDE, "p": LARGE_SIDE, "q": LARGE_SIDE, "kh": 1, "kw": 1, "stride_h": 1, "stride_w": 1}
    values = {"x": arg_in(0), "x_pitch": channels, "weight": arg_in(1), "y": arg_out(0), "y_pitch": channels, "y_offset": 0, "batch": 1, **place}
    values |= {"pad_h": 0, "pad_w": 0, "dil_h": 1, "dil_w": 1, "groups": 1, "cin_g": channels, "cout_g": channels}
    tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 8 * unit, "WARPS_M": 4, "WARPS_N": 2, "STAGES": 3, "VEC": unit, "POINTWISE": pointwise}
    plan.launch("conv_igemm", {"TYPE": kernels.element_type(dtype), **tile, "SPLIT_K": 1, "EPILOGUE": kernels.epilogue()}, values)
    made = plan.done()
    (call,) = resolve(made.plan, made.specs, [(rows, channels), weight.shape], gpu.sms).calls
    nbytes = rows * channels * storage.itemsize
    places = [first * channels * storage.itemsize for first in (0, rows // 3, rows - 1000)]
    x, y, filters = (int(check(gpu.cu.cuMemAlloc(size))) for size in (nbytes, nbytes, weight.nbytes))
    try:
        check(gpu.cu.cuMemsetD8(x, 0, nbytes))
        check(gpu.cu.cuMemsetD8(y, 0xFF, nbytes))
        packed = pack(weight, "ohwi", channels)
        check(gpu.cu.cuMemcpyHtoD(filters, packed.ctypes.data, packed.nbytes))
        for offset in places:
            check(gpu.cu.cuMemcpyHtoD(x + offset, block.ctypes.data, block.nbytes))
        gpu.launch(call, gpu.function(codes[call.spec], call.kernel, call.smem), pack_args(call, {("in", 0): x, ("in", 1): filters, ("out", 0): y}))
        gpu.synchronize()
        want = (block.astype(np.float64) @ weight[:, :, 0, 0].T.astype(np.float64)).astype(storage)
        for offset in places:
            got = np.empty_like(want)
            check(gpu.cu.cuMemcpyDtoH(got.ctypes.data, y + offset, got.nbytes))
            assert relative_error(got, want) < BOUND
    finally:
        for pointer in (x, y, filters):
            check(gpu.cu.cuMemFree(pointer))
