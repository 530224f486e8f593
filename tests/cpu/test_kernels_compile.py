"""Every kernel template compiles for every architecture, without local memory, and is launched with what its header says."""

from __future__ import annotations

import re
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

import kernel_cases
import plan_builder
from tilewright import kernels_ptx
from tilewright.optimizer.errors import CompileError
from tilewright.optimizer.jit import nvrtc
from tilewright.optimizer.lower import kernels
from tilewright.optimizer.lower.render import kernel_name, render
from tilewright.optimizer.records import KernelSpec
from tilewright.optimizer.target import parse_targets

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120", "sm_120a", "compute_80")
WIDE_ARCHS = ("sm_80", "sm_90a", "sm_120")  # one of each generation; the others compile like one of these
FULL = kernels.epilogue([kernels.op("Bias"), kernels.op("Relu"), kernels.op("AddFull", 0), kernels.op("MulGate", 1)])
EMPTY = kernels.epilogue()


def igemm(tile: tuple[int, ...], dtype: str, vec: int | None = None, pointwise: bool = False, split: int = 1, epilogue: str = FULL) -> KernelSpec:
    block_m, block_n, row_bytes, warps_m, warps_n, stages = tile
    size = {"f16": 2, "tf32": 4}[dtype]
    params = {"TYPE": kernels.element_type(dtype), "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": row_bytes // size, "WARPS_M": warps_m, "WARPS_N": warps_n}
    return KernelSpec.of("conv_igemm", {**params, "STAGES": stages, "VEC": vec or 16 // size, "POINTWISE": pointwise, "SPLIT_K": split, "EPILOGUE": epilogue})


@cache
def each_template() -> tuple[KernelSpec, ...]:
    specs = [igemm(kernel_cases.TILES[9], "f16"), igemm(kernel_cases.TILES[9], "tf32", split=4, epilogue=EMPTY)]
    for dtype in ("f16", "tf32"):
        t = {"TYPE": kernels.element_type(dtype)}
        wide = {"LANES": 8, "THREADS": 256, "EPILOGUE": FULL}
        specs += [
            KernelSpec.of("splitk_reduce", {**t, "SPLIT_K": 4, **wide}),
            KernelSpec.of("conv_depthwise", {**t, "KERNEL_H": 3, "KERNEL_W": 3, "STRIDE_W": 1, "DILATION_W": 1, "OUT_W": 2, **wide}),
            KernelSpec.of("conv_direct", {**t, **wide}),
            KernelSpec.of("pool", {**t, "KIND": 0, "KERNEL_H": 3, "KERNEL_W": 3, **wide}),
            KernelSpec.of("global_pool", {**t, "MAXIMUM": False, **wide}),
            KernelSpec.of("pointwise", {**t, "LANES": 8, "ROWS": 4, "THREADS": 256, "EPILOGUE": FULL}),
            KernelSpec.of("concat", {**t, "SOURCES": 8, **wide}),
            KernelSpec.of("layout", {**t, "OTHER": kernels.TF32, "TO_NHWC": dtype == "f16", "TILE_C": 64}),
        ]
    return tuple(specs)


@cache
def wide_grid() -> tuple[KernelSpec, ...]:
    """Every tile, half of them of one type and half of the other, every size of copy, every baked window, every epilogue op."""
    specs = []
    for i, tile in enumerate(kernel_cases.TILES):
        dtype = ("f16", "tf32")[i % 2]
        specs.append(igemm(tile, dtype, pointwise=i % 3 == 0))
        specs.append(igemm(tile, ("tf32", "f16")[i % 2], split=(1, 4)[i % 2], epilogue=(FULL, EMPTY)[i % 2]))
    for i, tile in enumerate(kernel_cases.SMALL_COPY_TILES):
        specs.append(igemm(tile, ("f16", "tf32")[i % 2], vec=({"f16": 8, "tf32": 4}[("f16", "tf32")[i % 2]]) // (2 + i % 3 // 2 * 2)))
    for dtype in ("f16", "tf32"):
        t, wide = {"TYPE": kernels.element_type(dtype)}, {"LANES": 32, "THREADS": 256, "EPILOGUE": FULL}
        for kernel, stride, out_w in ((5, 2, 4), (7, 1, 4), (0, 0, 2)):
            baked = {"KERNEL_H": kernel, "KERNEL_W": kernel, "STRIDE_W": stride, "DILATION_W": min(kernel, 1)}
            specs.append(KernelSpec.of("conv_depthwise", {**t, **baked, "OUT_W": out_w, **wide}))
        specs += [KernelSpec.of("pool", {**t, "KIND": kind, "KERNEL_H": 0, "KERNEL_W": 0, **wide}) for kind in (1, 2)]
        specs.append(KernelSpec.of("splitk_reduce", {**t, "SPLIT_K": 16, **wide}))
        specs.append(KernelSpec.of("global_pool", {**t, "MAXIMUM": True, **wide}))
    ops = [kernels.activation_op(a) for a in plan_builder.ACTIVATIONS.values()]
    ops += [kernels.op(name, 0) for name in plan_builder.OTHER_OPS if name != "Affine"]
    rest = {"TYPE": kernels.F16, "LANES": 8, "ROWS": 2, "THREADS": 128}
    specs += [KernelSpec.of("pointwise", {**rest, "EPILOGUE": kernels.epilogue(ops[start : start + 4])}) for start in range(0, len(ops), 4)]
    return tuple(specs)


def compile_all(specs: tuple[KernelSpec, ...], arch: str) -> list[str]:
    def attempt(spec: KernelSpec) -> str:
        try:
            nvrtc.compile_source(render(spec), kernel_name(spec), arch, kernels_ptx.include_dirs(), kernels.smem_bytes(spec))
        except CompileError as error:
            return str(error)[:600]
        return ""

    with ThreadPoolExecutor() as pool:
        return [problem for problem in pool.map(attempt, specs) if problem]


@pytest.mark.parametrize("arch", ARCHS)
def test_each_template(arch):
    assert not compile_all(each_template(), arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", WIDE_ARCHS)
def test_whole_grid(arch):
    limit = nvrtc.SMEM_LIMITS[int(re.sub(r"\D", "", arch))]
    assert not compile_all(tuple(s for s in wide_grid() if kernels.smem_bytes(s) <= limit), arch)


@pytest.mark.parametrize("arch", WIDE_ARCHS)
def test_wide_grid(arch):
    limit = nvrtc.SMEM_LIMITS[int(re.sub(r"\D", "", arch))]
    fitting = tuple(s for s in wide_grid() if kernels.smem_bytes(s) <= limit)
    assert len(fitting) > 50
    # All of it for Hopper, every third for the others.
    assert not compile_all(fitting if arch == "sm_90a" else fitting[::3], arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_120", "compute_80"])
def test_all_templates(arch):
    path = kernels_ptx.include_dirs()[0].parent / "all_templates.cu"
    source = path.read_text()
    assert set(re.findall(r'#include "(\w+)\.cuh"', source)) == set(kernels_ptx.template_names())
    nvrtc.compile_source(source, "all_templates", arch, kernels_ptx.include_dirs())


@pytest.mark.parametrize("header", sorted(p.name for d in kernels_ptx.include_dirs() for p in d.glob("*.cuh")))
def test_header_compiles_alone(header):
    source = f'#include "{header}"\nextern "C" __global__ void nothing() {{}}\n'
    nvrtc.compile_source(source, "nothing", "sm_90a", kernels_ptx.include_dirs())


def test_launch_facts_are_those_of_the_headers():
    """THREADS, SMEM_BYTES and the size of Args, as static_asserts that the compiler checks."""
    specs = (*each_template(), *wide_grid())
    lines = [f'#include "{t}.cuh"' for t in kernels_ptx.template_names()]
    for i, spec in enumerate(specs):
        kinds = "".join("i" if kind == "i32" else "P" for _, kind in kernels_ptx.template_args(spec.template))
        assert kinds.count("i") % 2 == 0 and "iP" not in kinds, f"{spec.template}: pointers first and an even number of ints, so that Args has no padding"
        params = render(spec).split("<\n", 1)[1].split(";\n", 1)[0]
        lines += [f"using K{i} = tilewright::{kernels_ptx.template_struct(spec.template)}<{params};"]
        lines += [f'static_assert(K{i}::THREADS == {kernels.block_threads(spec)} && K{i}::SMEM_BYTES == {kernels.smem_bytes(spec)}, "{spec.template}");']
        lines += [f'static_assert(sizeof(K{i}::Args) == {struct.calcsize(kinds)}, "{spec.template}");']
    source = "\n".join([*lines, 'extern "C" __global__ void nothing() {}', ""])
    nvrtc.compile_source(source, "nothing", "sm_80", kernels_ptx.include_dirs())


def test_default_targets_are_compiled_for():
    compiled = {arch for target in parse_targets("sm_90a,portable") for arch in (*target.cubins, target.ptx) if arch}
    assert compiled <= set(ARCHS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"BLOCK_N": 48}, "multiples of 16 x 32"),
        ({"BLOCK_K": 48}, "64 or 128 bytes"),
        ({"STAGES": 1}, "2 to 8 stages"),
        ({"VEC": 1}, "4, 8 or 16 bytes"),
    ],
)
def test_wrong_parameters_do_not_compile(change, reason):
    good = igemm(kernel_cases.TILES[9], "f16")
    spec = KernelSpec.of("conv_igemm", {**dict(good.params), **change})
    with pytest.raises(CompileError, match=reason):
        nvrtc.compile_source(render(spec), kernel_name(spec), "sm_90a", kernels_ptx.include_dirs())
