"""Custom nodes on a GPU: kernels of the model really run, under CUDA graphs, in threads, with scratch memory; and what is said where they cannot."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import onnxruntime
import pytest

from image_bytes import CUBIN, PTX, container
from region_models import Region, add_plan, carried, chain, digest
from tilewright import custom_ops

pytestmark = pytest.mark.gpu

SOURCE = r"""
struct AddArgs { const float* x; float* y; int n; float value; };
extern "C" __global__ void add(const AddArgs a) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) a.y[i] = a.x[i] + a.value;
}
// The struct ends on 4 bytes, so it is padded; loose parameters end where the last one does.
struct NegateArgs { const float* x; float* y; int n; };
extern "C" __global__ void negate(const NegateArgs a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (i < a.n) a.y[i] = -a.x[i];
}
extern "C" __global__ void negate_loose(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = -x[i];
}
// One block; every element travels through 96 KiB of dynamic shared memory.
extern "C" __global__ void add_shared(const AddArgs a) {
  extern __shared__ float tile[];
  for (int base = 0; base < a.n; base += 24576) {
    for (int i = threadIdx.x; i < 24576 && base + i < a.n; i += blockDim.x) tile[i] = a.x[base + i];
    __syncthreads();
    for (int i = threadIdx.x; i < 24576 && base + i < a.n; i += blockDim.x) a.y[base + i] = tile[i] + a.value;
    __syncthreads();
  }
}
"""


@cache
def compiled(arch: str) -> bytes:
    """The kernels as a cubin (``sm_90``) or PTX (``compute_80``)."""
    from cuda.bindings import nvrtc

    def check(result):
        assert result[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, result[0]
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"kernels.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()]))
    is_ptx = arch.startswith("compute")
    size = check((nvrtc.nvrtcGetPTXSize if is_ptx else nvrtc.nvrtcGetCUBINSize)(program))
    out = bytes(size)
    check((nvrtc.nvrtcGetPTX if is_ptx else nvrtc.nvrtcGetCUBIN)(program, out))
    return out


@cache
def image() -> bytes:
    """Machine code for this GPU, and PTX."""
    number = custom_ops.status()["devices"][0]["capability"].replace(".", "")
    return container((CUBIN, int(number), 0, compiled(f"sm_{number}")), (PTX, 80, 0, compiled("compute_80")))


def region(value: float, name: str = "region", carry: bool = True, kernel: str = "add") -> Region:
    return Region("FusedConvRegion_portable_0", name, {"plan_portable": add_plan(image(), value, kernel), **(carried(image()) if carry else {})})


def with_plan(plan: str, name: str = "region") -> bytes:
    return chain([Region("FusedConvRegion_portable_0", name, {"plan_portable": plan, **carried(image())})]).SerializeToString()


def x_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4), np.float32)


def launches() -> int:
    return custom_ops.status()["launches"]


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_kernels_run(level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    model = chain([region(10.0, "first"), region(100.0, "second", carry=False)]).SerializeToString()
    session = custom_ops.session(model, require_kernels=True, session_options=options)
    before = launches()
    for rows in (1, 7, 100_000, 7):
        x = x_of(rows)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + np.float32(10) + np.float32(100))
    assert launches() - before == 8


def test_an_empty_batch():
    session = custom_ops.session(chain([region(1.0)]).SerializeToString(), require_kernels=True)
    assert session.run(None, {"x": x_of(0)})[0].shape == (0, 4)


def test_the_cpu_runs_the_body():
    session = custom_ops.session(chain([region(1.0)]).SerializeToString(), ["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x_of(3)})[0], 2 * x_of(3))


def test_without_the_library_the_gpu_runs_the_body():
    session = onnxruntime.InferenceSession(chain([region(1.0)]).SerializeToString(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x_of(3)})[0], 2 * x_of(3))


def test_a_class_that_this_gpu_does_not_run_stays_a_body():
    other = next(c for c in custom_ops.status()["classes"] if c not in _registered())
    model = chain([Region(f"FusedConvRegion_{other}_0", "foreign", {f"plan_{other}": add_plan(image(), 1.0)})]).SerializeToString()
    np.testing.assert_array_equal(custom_ops.session(model).run(None, {"x": x_of(3)})[0], 2 * x_of(3))
    with pytest.raises(custom_ops.OpLibraryError, match=r"1 of the model's nodes .* \(foreign\): kernels are registered for .*portable only"):
        custom_ops.session(model, require_kernels=True)


def _registered() -> list[str]:
    custom_ops.register(onnxruntime.SessionOptions())
    return custom_ops.status()["registered"]


def test_ptx_is_compiled_by_the_driver():
    ptx = container((PTX, 80, 0, compiled("compute_80")))
    model = chain([Region(attributes={"plan_portable": add_plan(ptx, 3.0), **carried(ptx)})]).SerializeToString()
    np.testing.assert_array_equal(custom_ops.session(model, require_kernels=True).run(None, {"x": x_of(5)})[0], x_of(5) + 3)


def test_large_shared_memory():
    plan = add_plan(image(), 2.0, "add_shared").replace("add_shared 128 0 ceildiv(i0.0*i0.1,128)", "add_shared 256 98304 1")
    session = custom_ops.session(with_plan(plan), require_kernels=True)
    for rows in (3, 50_000):
        np.testing.assert_array_equal(session.run(None, {"x": x_of(rows)})[0], x_of(rows) + 2)


SCRATCH_PLAN = (
    "tilewright 1\noutput f32 i0.0 i0.1\nscratch 100\nscratch i0.0*i0.1*4\nimage {digest}\n"
    "launch 0 add 128 0 ceildiv(i0.0*i0.1,128) 1 1\narg in 0 0\narg ws 1 0\narg i32 i0.0*i0.1\narg f32 0.5\n"
    "launch 0 {negate} 128 0 ceildiv(i0.0*i0.1,128) 1 1\npdl\narg ws 1 0\narg out 0 0\narg i32 i0.0*i0.1\n"
)


@pytest.mark.parametrize("negate", ["negate", "negate_loose"])
def test_scratch_is_freed_and_launches_overlap_rightly(negate):
    plan = SCRATCH_PLAN.format(digest=digest(image()), negate=negate)
    if negate == "negate_loose":
        plan = plan.replace("pdl\n", "")  # it does not wait
    providers = [("CUDAExecutionProvider", {"gpu_mem_limit": str(1 << 30)}), "CPUExecutionProvider"]
    session = custom_ops.session(with_plan(plan), providers, require_kernels=True)
    x = x_of(1 << 22)  # 64 MiB: the limit holds a few blocks, so a leak fails
    for _ in range(30):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], -(x + np.float32(0.5)))


def test_cuda_graph_sees_new_data():
    second = Region("FusedConvRegion_portable_1", "second", {"plan_portable": SCRATCH_PLAN.format(digest=digest(image()), negate="negate")})
    session = custom_ops.session(chain([region(10.0, "first"), second], shape=[8, 4]).SerializeToString(), cuda_graph=True, require_kernels=True)
    x = onnxruntime.OrtValue.ortvalue_from_numpy(x_of(8), "cuda", 0)
    y = onnxruntime.OrtValue.ortvalue_from_numpy(np.full((8, 4), np.nan, np.float32), "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)  # warm up and capture
    captured = launches()
    for seed in range(1, 6):
        x.update_inplace(x_of(8, seed))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y.numpy(), -(x_of(8, seed) + np.float32(10) + np.float32(0.5)))
    assert launches() == captured  # replays do not come through the library


def test_sessions_and_threads():
    sessions = [custom_ops.session(chain([region(float(i), f"n{i}"), region(50.0, f"m{i}", carry=False)]).SerializeToString()) for i in range(2)]
    scratch = custom_ops.session(with_plan(SCRATCH_PLAN.format(digest=digest(image()), negate="negate")))
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for run in range(100):
                x = x_of((thread * 1009 + run * 37) % 5000, run)
                np.testing.assert_array_equal(sessions[thread % 2].run(None, {"x": x})[0], x + np.float32(thread % 2) + np.float32(50))
                np.testing.assert_array_equal(scratch.run(None, {"x": x})[0], -(x + np.float32(0.5)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_a_cut_model_says_what_to_do():
    # NOTE: a digest of its own, since the process keeps the images of other tests.
    lost = container((PTX, 80, 0, compiled("compute_80") + b"// lost"))
    session = custom_ops.session(chain([Region(name="conv_5", attributes={"plan_portable": add_plan(lost, 1.0)})]).SerializeToString())
    message = f"node 'conv_5': image {digest(lost)} is in no node of this model: re-run optimize; the node that carried the image was removed"
    with pytest.raises(Exception, match=message):
        session.run(None, {"x": x_of(2)})


def test_errors_name_the_node():
    with pytest.raises(Exception, match=r"node 'conv_6': .*28 bytes of arguments for a kernel that takes 24"):
        custom_ops.session(with_plan(add_plan(image(), 1.0) + "arg i32 0\n", "conv_6"))
    with pytest.raises(Exception, match=r"node 'conv_7': kernel subtract of image .*not found"):
        custom_ops.session(with_plan(add_plan(image(), 1.0, "subtract"), "conv_7"))
    broken = container((PTX, 80, 0, b".version 8.0\n.target sm_80\nnonsense\0"))
    with pytest.raises(Exception, match=r"node 'conv_8': .*image .*: a PTX JIT compilation failed"):
        custom_ops.session(chain([Region(name="conv_8", attributes={"plan_portable": add_plan(broken, 1.0), **carried(broken)})]).SerializeToString())
    session = custom_ops.session(with_plan(add_plan(image(), 1.0).replace("128 0 ceil", "128 1000000 ceil"), "conv_9"))
    with pytest.raises(Exception, match=r"node 'conv_9': plan_portable, line 4: launching add: invalid argument"):
        session.run(None, {"x": x_of(2)})
