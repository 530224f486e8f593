"""From a kernel spec to an image: the rendered source, the compiler's refusals, the cache under damage and races, the container."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import re
import struct
from pathlib import Path

import pytest

from tilewright import kernels_ptx
from tilewright.optimizer.errors import CompileError, TilewrightError
from tilewright.optimizer.jit import build as build_module
from tilewright.optimizer.jit import cubin, nvrtc
from tilewright.optimizer.jit.build import CUBIN, EXACT, PTX, build, compile_spec
from tilewright.optimizer.jit.store import Store, entry_key, include_digest
from tilewright.optimizer.launch import arg_in, arg_out, dim
from tilewright.optimizer.lower import kernels
from tilewright.optimizer.lower.render import kernel_name, render
from tilewright.optimizer.records import Activation, KernelSpec
from tilewright.optimizer.target import target_class

COPY = KernelSpec.of("pointwise", {"TYPE": kernels.F16, "LANES": 8, "ROWS": 1, "THREADS": 128, "EPILOGUE": kernels.epilogue()})
RELU = KernelSpec.of("pointwise", {**dict(COPY.params), "EPILOGUE": kernels.epilogue([kernels.op("Relu")])})
WRONG = KernelSpec.of("pointwise", {**dict(COPY.params), "THREADS": 100})
SPILLING = 'extern "C" __global__ void k(int* p, int n) { int a[64]; for (int i = 0; i < n; ++i) a[i] = p[i] * 3; for (int i = 0; i < n; ++i) p[i] = a[a[i]]; }'
TRIVIAL = 'extern "C" __global__ void k(int* p) { *p = 1; }'


# Rendering


def test_render():
    spec = KernelSpec.of(
        "pointwise", {**dict(COPY.params), "EPILOGUE": kernels.epilogue([kernels.op("Bias"), kernels.op("Clip", 0.0, 6.0), kernels.op("AddFull", 1)])}
    )
    name = kernel_name(spec)
    assert re.fullmatch(r"pointwise_f16_l8_r1_t128_bias_clip_add_full1_[0-9a-f]{10}", name)
    assert render(spec) == (
        '#include "pointwise.cuh"\n\nusing Kernel = tilewright::Pointwise<\n    /* TYPE */ tilewright::F16,\n    /* LANES */ 8,\n    /* ROWS */ 1,\n'
        "    /* THREADS */ 128,\n"
        "    /* EPILOGUE */ tilewright::Epilogue<tilewright::Bias, tilewright::Clip<0x00000000u, 0x40c00000u>, tilewright::AddFull<1>>>;\n\n"
        f'extern "C" __global__ void __launch_bounds__(Kernel::THREADS, Kernel::MIN_BLOCKS)\n{name}(const __grid_constant__ Kernel::Args args) {{\n'
        "  Kernel::run(args);\n}\n"
    )


def test_names_differ_where_specs_do():
    clips = [KernelSpec.of("pointwise", {**dict(COPY.params), "EPILOGUE": kernels.epilogue([kernels.op("Clip", 0.0, high)])}) for high in (1.0, 2.0, 6.0)]
    names = {kernel_name(s) for s in (COPY, RELU, *clips)}
    assert len(names) == 5 and all(re.fullmatch(r"[a-z_][a-z0-9_]*", n) for n in names)


@pytest.mark.parametrize("params", [dict(reversed(COPY.params)), {k: v for k, v in COPY.params if k != "ROWS"}, {**dict(COPY.params), "EXTRA": 1}])
def test_render_refuses_other_parameters(params):
    with pytest.raises(ValueError, match="TYPE, LANES, ROWS, THREADS, EPILOGUE"):
        render(KernelSpec.of("pointwise", params))


def test_render_refuses_unknown_template():
    with pytest.raises(KeyError, match="no kernel template 'conv_magic'"):
        render(KernelSpec.of("conv_magic", {}))


@pytest.mark.parametrize(
    ("activation", "text"),
    [
        (Activation("relu"), "Relu"),
        (Activation("clip", 0.0, float("inf")), "Clip<0x00000000u, 0x7f800000u>"),
        (Activation("leaky_relu", 0.5), "LeakyRelu<0x3f000000u>"),
        (Activation("hard_sigmoid", 1.0, 2.0), "HardSigmoid<0x3f800000u, 0x40000000u>"),
        (Activation("prelu"), "PReluVec<2>"),
        (Activation("gelu_tanh"), "GeluTanh"),
    ],
)
def test_activation_ops(activation, text):
    assert kernels.activation_op(activation, 2) == f"tilewright::{text}"


def test_every_activation_has_an_op():
    header = (kernels_ptx.include_dirs()[0] / "epilogue.cuh").read_text()
    for kind in ("relu", "clip", "leaky_relu", "prelu", "sigmoid", "tanh", "hard_sigmoid", "hard_swish", "silu", "gelu", "gelu_tanh", "mish"):
        name = re.match(r"tilewright::(\w+)", kernels.activation_op(Activation(kind)))
        assert name and f"struct {name.group(1)} " in header


# Launches


def values(**changes):
    pointers = {"x": arg_in(0), "y": arg_out(0)}
    return {**pointers, "batch": dim(0, 0), "p": 7, "q": 7, "x_pitch": 64, "y_pitch": 64, "y_offset": 0, "channels": 60, **changes}


def test_launch():
    launch = kernels.launch(COPY, 3, "name", values(y_zero_to=64), when=dim(0, 0).compare(">", 1), pdl=True)
    assert [str(e) for e in launch.grid] == ["ceildiv(i0.0*49,16)", "1", "1"]
    assert (launch.image, launch.kernel, launch.block, str(launch.smem), launch.pdl, str(launch.when)) == (3, "name", 128, "0", True, "i0.0>1")
    assert [str(a) for a in launch.args][:6] == ["in 0 0", "null", "out 0 0", "null", "null", "null"]
    assert [str(a) for a in launch.args][6:] == [f"i32 {v}" for v in ("i0.0", 7, 7, 64, 64, 0, 64, 60, 0, 0, 0, 0)]


def test_padding_counts_for_the_grid():
    assert [str(kernels.launch(COPY, 0, "n", values(channels=64, y_zero_to=z)).grid[1]) for z in (0, 64, 65)] == ["1", "1", "2"]


@pytest.mark.parametrize(("changes", "reason"), [({"bogus": 1}, "no argument bogus"), ({"bias": 4}, "bias is a pointer")])
def test_launch_refuses(changes, reason):
    with pytest.raises(KeyError, match=reason):
        kernels.launch(COPY, 0, "n", values(**changes))


def test_launch_refuses_missing_scalar():
    incomplete = values()
    del incomplete["channels"]
    with pytest.raises(KeyError, match="channels is missing"):
        kernels.launch(COPY, 0, "n", incomplete)


# The compiler


def test_compile_for_gpu_and_as_ptx():
    cubin, ptx = (nvrtc.compile_source(TRIVIAL, "k", arch, ()) for arch in ("sm_90a", "compute_80"))
    assert cubin.code.startswith(b"\x7fELF") and not cubin.ptx and cubin.registers > 0
    assert b".entry k(" in ptx.code and ptx.code.endswith(b"\0") and ptx.ptx and ptx.registers == 0


@pytest.mark.parametrize(
    ("source", "arch", "smem", "reason"),
    [
        ("this is no C++", "sm_90", 0, "k for sm_90: NVRTC_ERROR_COMPILATION"),
        ('#include "missing.cuh"\n' + TRIVIAL, "sm_90", 0, "missing.cuh"),
        (TRIVIAL, "sm_90", 232449, "232449 bytes of shared memory a block; the architecture has 232448"),
        (TRIVIAL, "sm_120", 101377, "the architecture has 101376"),
        (TRIVIAL, "sm_12", 0, "k for sm_12"),
        (TRIVIAL, "hopper", 0, "'hopper' is not an architecture"),
        (SPILLING, "sm_90", 0, "local memory is used (256 bytes a thread"),
    ],
)
def test_compile_refuses(source, arch, smem, reason):
    with pytest.raises(CompileError, match=re.escape(reason)):
        nvrtc.compile_source(source, "k", arch, (), smem)


def test_programs_are_freed(monkeypatch):
    from cuda.bindings import nvrtc as bindings

    made, freed = [], []

    class Counting:
        def __getattr__(self, name):
            return getattr(bindings, name)

        def nvrtcCreateProgram(self, *args):
            result = bindings.nvrtcCreateProgram(*args)
            made.append(int(result[1]))
            return result

        def nvrtcDestroyProgram(self, program):
            freed.append(int(program))
            return bindings.nvrtcDestroyProgram(program)

    nvrtc.version()
    monkeypatch.setattr(nvrtc, "_nvrtc", Counting)
    nvrtc.compile_source(TRIVIAL, "k", "sm_90", ())
    with pytest.raises(CompileError):
        nvrtc.compile_source("no", "k", "sm_90", ())
    assert len(made) == 2 and made == freed


def test_missing_compiler_is_one_sentence(monkeypatch):
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(TilewrightError, match="NVRTC is missing; install"):
        nvrtc.compile_source(TRIVIAL, "k", "sm_90", ())
    monkeypatch.undo()
    nvrtc._nvrtc.cache_clear()


# The cache


def key(source="s", name="n", compiler="c", flags=("f",), dirs=()):
    return entry_key(name, compiler, flags, source, dirs)


def test_key_depends_on_everything_but_paths(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n#include <builtin.h>\n')
        (folder / "inner.cuh").write_text("constexpr int A = 1;\n")
    source = '#include "outer.cuh"\n'
    base = key(source, dirs=[one])
    assert key(source, dirs=[two]) == base
    others = [key("x", dirs=[one]), key(source, "m", dirs=[one]), key(source, "n", "d", dirs=[one]), key(source, flags=("g",), dirs=[one])]
    (two / "inner.cuh").write_text("constexpr int A = 23;\n")
    assert len({base, key(source, dirs=[two]), key(source), *others}) == 7


def test_headers_of_templates_count():
    folders = (*kernels_ptx.include_dirs(), nvrtc.cuda_include_dir())
    digests = {include_digest(render(spec), folders) for spec in (COPY, RELU)}
    assert len(digests) == 1
    assert include_digest(render(COPY), kernels_ptx.include_dirs()) not in digests, "cuda_fp16.h is not among the headers"


def test_store_keeps(tmp_path):
    store = Store(tmp_path / "not" / "there" / "yet")
    assert store.load("n", "k") is None
    store.save("n", "k", b"code", {"registers": 7})
    assert store.load("n", "k") == (b"code", {"registers": 7, "key": "k", "sha256": hashlib.sha256(b"code").hexdigest()})
    assert store.load("n", "other") is None
    assert [p.name for p in store.folder.iterdir()] == ["n.k"]


def damage(entry: Path, how: str) -> None:
    if how == "cut code":
        (entry / "code").write_bytes(b"co")
    elif how == "no code":
        (entry / "code").unlink()
    elif how == "no meta":
        (entry / "meta.json").unlink()
    elif how == "cut meta":
        (entry / "meta.json").write_text('{"key": "k", "sha')
    elif how == "meta is a list":
        (entry / "meta.json").write_text("[1]")
    elif how == "other key":
        meta = json.loads((entry / "meta.json").read_text())
        (entry / "meta.json").write_text(json.dumps({**meta, "key": "j"}))
    elif how == "binary meta":
        (entry / "meta.json").write_bytes(b"\xff\xfe\x00")
    elif how == "a file":
        for path in entry.iterdir():
            path.unlink()
        entry.rmdir()
        entry.write_text("not a folder")


@pytest.mark.parametrize("how", ["cut code", "no code", "no meta", "cut meta", "meta is a list", "other key", "binary meta", "a file"])
def test_damaged_entry_is_a_miss_and_is_replaced(tmp_path, how):
    store = Store(tmp_path)
    store.save("n", "k", b"code", {})
    damage(tmp_path / "n.k", how)
    assert store.load("n", "k") is None
    store.save("n", "k", b"code", {})
    assert store.load("n", "k") is not None
    assert [p.name for p in tmp_path.iterdir()] == ["n.k"]


def test_store_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for store in (Store(tmp_path / "file"), Store(tmp_path / "file" / "below"), Store(Path("/proc/nothing")), Store(None)):
        store.save("n", "k", b"code", {})
        assert store.load("n", "k") is None


def _race(folder: Path, seed: int) -> int:
    store = Store(folder)
    misses = 0
    for i in range(60):
        name = f"k{i % 7}"
        found = store.load("n", name)
        if found is None:
            misses += 1
            store.save("n", name, name.encode() * 1000, {"seed": seed})
        elif found[0] != name.encode() * 1000:
            return -1
        if i % 11 == seed % 11:
            with contextlib.suppress(OSError):
                (folder / f"n.{name}" / "code").write_bytes(b"torn")
    return misses


def test_store_under_many_writers_and_damage(tmp_path):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        misses = pool.starmap(_race, [(tmp_path, seed) for seed in range(8)])
    assert min(misses) >= 0, "an entry was read that was not whole"
    store = Store(tmp_path)
    for i in range(7):
        store.save("n", f"k{i}", f"k{i}".encode() * 1000, {})
        assert store.load("n", f"k{i}") is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"n.k{i}" for i in range(7)], "something was left behind"


# Images


def entries(data: bytes) -> list[tuple[int, int, int, bytes]]:
    magic, count, zero = struct.unpack_from("<8s2I", data)
    assert (magic, zero) == (b"TWIMG001", 0)
    found = []
    for i in range(count):
        kind, arch, flags, zero, offset, size = struct.unpack_from("<4I2Q", data, 16 + 32 * i)
        assert zero == 0 and offset % 16 == 0 and offset + size <= len(data)
        found.append((kind, arch, flags, data[offset : offset + size]))
    return found


def test_build_portable_image():
    result = build({"a": COPY, "b": RELU}, target_class("portable"))
    assert set(result.images) == {"a", "b"} and not result.failures
    image = result.images["a"]
    assert image.digest == hashlib.sha256(image.data).hexdigest() and image.kernel == kernel_name(COPY)
    found = entries(image.data)
    assert [(k, a, f) for k, a, f, _ in found] == [(CUBIN, 80, 0), (CUBIN, 90, 0), (CUBIN, 100, 0), (CUBIN, 120, 0), (PTX, 80, 0)]
    assert all(code.startswith(b"\x7fELF") and image.kernel.encode() in code for kind, _, _, code in found if kind == CUBIN)
    assert f".entry {image.kernel}(".encode() in found[-1][3] and found[-1][3].endswith(b"\0")
    assert set(image.registers) == {"sm_80", "sm_90", "sm_100", "sm_120", "compute_80"}


def test_exact_architecture_is_flagged():
    (image,) = build({"a": COPY}, target_class("sm_90a")).images.values()
    assert [(k, a, f) for k, a, f, _ in entries(image.data)] == [(CUBIN, 90, EXACT)]


def test_op_library_takes_the_image():
    from oplib import library

    (image,) = build({"a": COPY}, target_class("portable")).images.values()
    for capability, choice in (((9, 0), "cubin 90"), ((8, 9), "cubin 80"), ((11, 0), "ptx 80")):
        assert library().check_image(image.data, *capability).startswith(choice)


def test_same_bytes_from_cache_and_without(tmp_path, monkeypatch):
    target = target_class("sm_90")
    fresh = build({"a": COPY}, target).images["a"]
    assert build({"a": COPY}, target, tmp_path).images["a"] == fresh
    assert len(list(tmp_path.iterdir())) == 1

    def never(*_args, **_kwargs):
        raise AssertionError("compiled again")

    monkeypatch.setattr(build_module.nvrtc, "compile_source", never)
    again = build({"x": COPY}, target, tmp_path).images["x"]
    assert again == fresh and again.registers == fresh.registers


def test_damaged_cache_is_built_again(tmp_path):
    first = compile_spec(COPY, "sm_90", Store(tmp_path))
    (entry,) = tmp_path.iterdir()
    (entry / "code").write_bytes(b"")
    assert compile_spec(COPY, "sm_90", Store(tmp_path)) == first
    assert compile_spec(COPY, "sm_90", Store(tmp_path)) == first


def test_one_failure_leaves_the_others():
    calls = []
    result = build({"good": COPY, "bad": WRONG, "also": RELU}, target_class("sm_90"), None, lambda done, total: calls.append((done, total)))
    assert set(result.images) == {"good", "also"} and set(result.failures) == {"bad"}
    assert "whole rows of lanes" in str(result.failures["bad"])
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_too_much_shared_memory_is_a_failure_for_the_class_that_has_less():
    wide = {"TYPE": kernels.F16, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "WARPS_M": 4, "WARPS_N": 2, "STAGES": 4, "VEC": 8, "POINTWISE": True}
    spec = KernelSpec.of("conv_igemm", {**wide, "SPLIT_K": 1, "EPILOGUE": kernels.epilogue()})
    assert kernels.smem_bytes(spec) == 131072
    assert not build({"a": spec}, target_class("sm_90")).failures
    assert "sm_120: 131072 bytes of shared memory" in str(build({"a": spec}, target_class("portable")).failures["a"])


def test_nothing_to_build():
    assert build({}, target_class("portable")).images == {}


def test_resources_are_read_from_the_cubin(tmp_path):
    compiled = nvrtc.compile_source('extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }', "k", "sm_90", ())
    assert cubin.resources(compiled.code).registers == compiled.registers > 0
    with pytest.raises(ValueError, match="not a cubin"):
        cubin.resources(b"nonsense")
    with pytest.raises(ValueError, match=r"cut short|no section|does not say"):
        cubin.resources(compiled.code[:200])
