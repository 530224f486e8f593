"""Whole sessions with custom nodes on a machine without a GPU: the op library built for the CPU provider, over a driver that runs kernels on the host.

Each scenario is a function and runs in a process of its own (`python host_scenarios.py NAME`), since the library keeps the state of a process;
tests/cpu/test_region_op.py runs them all.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from image_bytes import CUBIN, PTX, container, elf
from region_models import Region, add_plan, carried, chain, digest

SCENARIOS: dict[str, tuple[Callable[[], None], dict[str, str]]] = {}
PTX_ONLY = container((PTX, 80, 0, b"add negate nothing"))  # the fake driver reads the names of the kernels in the code
IMAGE = container((CUBIN, 80, 0, elf()), (PTX, 80, 0, b"add, twice"))
OTHER = container((PTX, 80, 0, b"add, once more"))


def scenario(**environment: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a scenario and the environment of its process."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        SCENARIOS[function.__name__] = (function, environment)
        return function

    return register


class Host:
    """The library and the driver of this process."""

    def __init__(self) -> None:
        folder = Path(os.environ["TILEWRIGHT_TEST_BUILD"])
        self.driver = ctypes.CDLL(str(folder / "libfake_cuda.so"), mode=ctypes.RTLD_GLOBAL)
        self.driver.fake_cuda_log.restype = ctypes.c_char_p
        self.path = str(folder / "libtilewright_ops_host.so")

    def options(self) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.register_custom_ops_library(self.path)
        return options

    def session(self, *regions: Region, **model: object) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(chain(regions, **model).SerializeToString(), self.options(), providers=["CPUExecutionProvider"])

    def status(self) -> Mapping[str, object]:
        library = ctypes.CDLL(self.path)
        library.tilewright_status.restype = ctypes.c_char_p
        return json.loads(library.tilewright_status())

    def launches(self) -> list[str]:
        return self.driver.fake_cuda_log().decode().splitlines()


def region(value: float, name: str = "region", image: bytes = PTX_ONLY, carry: bool = True, **attributes: str | bytes) -> Region:
    """A region whose kernel adds ``value``."""
    return Region("FusedConvRegion_portable_0", name, {"plan_portable": add_plan(image, value), **(carried(image) if carry else {}), **attributes})


def x_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4), np.float32)


def fails(text: str, action: Callable[[], object]) -> None:
    """Asserts that ``action`` raises an error that holds ``text``."""
    try:
        action()
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error with {text!r}")


@scenario()
def kernels_run_with_dynamic_shapes() -> None:
    host = Host()
    session = host.session(region(10.0, "first"), region(100.0, "second", carry=False))
    for rows in (1, 7, 300, 7, 0):
        x = x_of(rows)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + np.float32(10) + np.float32(100))
    assert host.launches()[:3] == ["add grid 1 1 1 block 128 smem 0 pdl 0"] * 3
    status = host.status()
    assert status["nodes"] == 2 and status["launches"] == 8 and status["images"] == 1  # the empty batch launched nothing
    assert status["registered"] == ["sm90a", "sm90", "portable"] and status["reason"] == "" and status["runtime"] == onnxruntime.__version__


@scenario()
def every_optimization_level() -> None:
    host, x = Host(), x_of(3)
    model = chain([region(1.0)]).SerializeToString()
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        options = host.options()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)


@scenario()
def the_best_variant_is_taken() -> None:
    host, x = Host(), x_of(2)
    adds = {"portable": 1.0, "sm90": 2.0, "sm90a": 3.0, "sm80": 4.0}
    plans = {f"plan_{suffix}": add_plan(OTHER if suffix == "sm90a" else PTX_ONLY, value) for suffix, value in adds.items()}
    for drop, expected in ((None, 3.0), ("plan_sm90a", 2.0), ("plan_sm90", 1.0)):
        plans.pop(drop, None)
        session = host.session(Region("FusedConvRegion_portable_3", "n", {**plans, **carried(PTX_ONLY), **carried(OTHER)}))
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + np.float32(expected))


@scenario(TILEWRIGHT_FAKE_GPUS="8.9")
def variants_on_another_gpu() -> None:
    host, x = Host(), x_of(2)
    assert host.status()["devices"] == [{"name": "Fake GPU", "capability": "8.9", "sms": 132}]
    plans = {f"plan_{suffix}": add_plan(PTX_ONLY, value) for suffix, value in (("sm80", 1.0), ("sm86", 2.0), ("sm90", 4.0), ("portable", 5.0))}
    session = host.session(Region("FusedConvRegion_sm86_9", "n", {**plans, **carried(PTX_ONLY)}))
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 2)
    assert host.status()["registered"] == ["sm89", "sm86", "sm80", "portable"]


@scenario(TILEWRIGHT_FAKE_GPUS="9.0,8.9")
def only_what_every_gpu_runs_is_registered() -> None:
    host = Host()
    session = host.session(Region("FusedConvRegion_sm90_0", "n", {"plan_sm90": add_plan(PTX_ONLY, 9.0), **carried(PTX_ONLY)}))
    assert host.status()["registered"] == ["portable"]
    np.testing.assert_array_equal(session.run(None, {"x": x_of(2)})[0], 2 * x_of(2))  # the body


@scenario(TILEWRIGHT_FAKE_GPUS="9.0,7.5")
def an_old_gpu_leaves_the_bodies() -> None:
    host = Host()
    session = host.session(region(9.0))
    np.testing.assert_array_equal(session.run(None, {"x": x_of(2)})[0], 2 * x_of(2))
    assert host.status()["registered"] == [] and "7.5" not in host.status()["reason"] and "8.0 or higher" in host.status()["reason"]


@scenario(TILEWRIGHT_FAKE_DRIVER="12080")
def an_old_driver_leaves_the_bodies() -> None:
    host = Host()
    np.testing.assert_array_equal(host.session(region(9.0)).run(None, {"x": x_of(2)})[0], 2 * x_of(2))
    assert host.status()["reason"] == "the NVIDIA driver supports CUDA 12.8; 13.0 (driver 580) is needed"


@scenario(TILEWRIGHT_FAKE_INIT="100")
def a_driver_that_does_not_start_leaves_the_bodies() -> None:
    host = Host()
    np.testing.assert_array_equal(host.session(region(9.0)).run(None, {"x": x_of(2)})[0], 2 * x_of(2))
    assert "does not start" in host.status()["reason"]


@scenario()
def scratch_when_pdl_and_padding() -> None:
    host = Host()
    plan = (
        f"tilewright 1\noutput f32 i0.0 i0.1\nscratch 100\nscratch i0.0*i0.1*4\nscratch 0\nimage {digest(PTX_ONLY)}\n"
        "launch 0 nothing 32 200000 sms 1 1\nwhen i0.0>2\npdl\narg i32 7\n"
        "launch 0 add 64 0 1 2 3\narg in 0 0\narg ws 1 0\narg i32 i0.0*i0.1\narg f32 0.5\n"
        "launch 0 negate 64 0 1 1 1\npdl\narg ws 1 0\narg out 0 0\narg null\narg i32 i0.0*i0.1\n"
    )
    session = host.session(Region("FusedConvRegion_portable_1", "n", {"plan_portable": plan, **carried(PTX_ONLY)}))
    for rows in (1, 3, 1000):
        np.testing.assert_array_equal(session.run(None, {"x": x_of(rows)})[0], -(x_of(rows) + np.float32(0.5)))
    nothing, add = "nothing grid 132 1 1 block 32 smem 200000 pdl 1", "add grid 1 2 3 block 64 smem 0 pdl 0"
    negate = "negate grid 1 1 1 block 64 smem 0 pdl 1"
    assert host.launches() == [add, negate, nothing, add, negate, nothing, add, negate]


@scenario()
def errors_of_a_run_name_the_node() -> None:
    host = Host()
    plan = add_plan(PTX_ONLY, 1.0).replace("i0.0*i0.1,128", "i0.0//(i0.0-2),128")
    session = host.session(Region("FusedConvRegion_portable_1", "conv_17", {"plan_portable": plan, **carried(PTX_ONLY)}))
    fails("tilewright: node 'conv_17': plan_portable, line 4: division by zero", lambda: session.run(None, {"x": x_of(2)}))
    session.run(None, {"x": x_of(3)})
    plan = add_plan(PTX_ONLY, 1.0).replace("i0.0*i0.1,128", "i0.2,128")
    session = host.session(Region("FusedConvRegion_portable_1", "conv_18", {"plan_portable": plan, **carried(PTX_ONLY)}))
    fails("node 'conv_18': input 0 has no dim 2", lambda: session.run(None, {"x": x_of(2)}))


@scenario()
def errors_of_creation_name_the_node() -> None:
    host = Host()

    def refused(text: str, attributes: Mapping[str, str | bytes], outputs: int = 1) -> None:
        fails(text, lambda: host.session(Region("FusedConvRegion_portable_0", "conv_3", attributes, outputs)))

    refused("node 'conv_3': it has no launch plan for compute capability 9.0", {})
    refused("node 'conv_3': it has no launch plan for compute capability 9.0", {"plan_sm80": add_plan(PTX_ONLY, 1.0)})
    refused("node 'conv_3': attribute plan_portable: launch plan, line 1: 'tilewright 1' expected", {"plan_portable": "tilewright 7"})
    refused("plan_portable makes output 0 as f16, the model says ONNX type 1", {"plan_portable": add_plan(PTX_ONLY, 1.0, dtype="f16")})
    refused("plan_portable has 1 outputs, the node 2", {"plan_portable": add_plan(PTX_ONLY, 1.0), **carried(PTX_ONLY)}, outputs=2)
    refused("plan_portable reads input 2 of 2", {"plan_portable": add_plan(PTX_ONLY, 1.0) + "arg in 2 0\n"})
    refused("takes 24", {"plan_portable": add_plan(PTX_ONLY, 1.0) + "arg i32 0\n", **carried(PTX_ONLY)})
    refused("kernel subtract of image", {"plan_portable": add_plan(PTX_ONLY, 1.0, "subtract"), **carried(PTX_ONLY)})
    refused("named symbol not found", {"plan_portable": add_plan(PTX_ONLY, 1.0, "subtract"), **carried(PTX_ONLY)})
    key = next(iter(carried(PTX_ONLY)))
    refused("is damaged: its bytes have the digest", {"plan_portable": add_plan(PTX_ONLY, 1.0), key: PTX_ONLY + b"x"})
    refused(f"attribute {key} is no uint8 tensor", {"plan_portable": add_plan(PTX_ONLY, 1.0), key: np.zeros(4, np.float32)})
    damaged = {
        "the magic TWIMG001 is missing": b"no image at all",
        "has no code for compute capability 9.0": container((PTX, 100, 0, b"add")),
        "loading image": container((PTX, 80, 0, b"bad")),
    }
    for text, image in damaged.items():
        refused(text, {"plan_portable": add_plan(image, 1.0), **carried(image)})


@scenario()
def a_cut_model_says_what_to_do() -> None:
    host = Host()
    session = host.session(region(1.0, "conv_5", carry=False))  # loads: the image could be in a node that is created later
    repair = f"node 'conv_5': image {digest(PTX_ONLY)} is in no node of this model: re-run optimize; the node that carried the image was removed"
    for _ in range(2):
        fails(repair, lambda: session.run(None, {"x": x_of(2)}))


@scenario()
def an_image_that_comes_later_is_found() -> None:
    host = Host()
    session = host.session(region(1.0, "first", carry=False), region(2.0, "second"))
    np.testing.assert_array_equal(session.run(None, {"x": x_of(2)})[0], x_of(2) + np.float32(1) + np.float32(2))


@scenario()
def images_of_variants_not_taken_are_kept() -> None:
    host = Host()
    plans = {"plan_sm90a": add_plan(OTHER, 1.0), "plan_portable": add_plan(PTX_ONLY, 5.0)}
    first = Region("FusedConvRegion_portable_0", "first", {**plans, **carried(OTHER), **carried(PTX_ONLY)})
    session = host.session(first, region(2.0, "second", carry=False))
    np.testing.assert_array_equal(session.run(None, {"x": x_of(2)})[0], x_of(2) + np.float32(1) + np.float32(2))


@scenario(TILEWRIGHT_TRUSTED_DIGESTS=f"{digest(OTHER)},{digest(IMAGE)}")
def only_trusted_images_are_loaded() -> None:
    host = Host()
    session = host.session(region(1.0, image=OTHER))
    np.testing.assert_array_equal(session.run(None, {"x": x_of(2)})[0], x_of(2) + 1)
    fails(f"image {digest(PTX_ONLY)} is not among TILEWRIGHT_TRUSTED_DIGESTS", lambda: host.session(region(1.0)))
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(f"{digest(OTHER)}\n{digest(PTX_ONLY)}\n")
        file.flush()
        os.environ["TILEWRIGHT_TRUSTED_DIGESTS"] = f"@{file.name}"
        host.session(region(1.0))
    os.environ["TILEWRIGHT_TRUSTED_DIGESTS"] = "@/nowhere"
    host.session(region(1.0))  # what is loaded stays loaded
    fails("the file that TILEWRIGHT_TRUSTED_DIGESTS names cannot be read", lambda: host.session(region(1.0, image=IMAGE)))


@scenario()
def sessions_and_threads() -> None:
    host = Host()
    sessions = [host.session(region(float(i), f"n{i}"), region(100.0, f"m{i}", carry=False)) for i in range(3)]
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for run in range(200):
                i, rows = (thread + run) % 3, (thread * 31 + run * 7) % 50
                x = x_of(rows, run)
                np.testing.assert_array_equal(sessions[i].run(None, {"x": x})[0], x + np.float32(i) + np.float32(100))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    np.testing.assert_array_equal(host.session(region(7.0)).run(None, {"x": x_of(2)})[0], x_of(2) + 7)


@scenario()
def registering_twice_is_harmless() -> None:
    host = Host()
    options = host.options()
    options.register_custom_ops_library(host.path)
    session = onnxruntime.InferenceSession(chain([region(1.0)]).SerializeToString(), options, providers=["CPUExecutionProvider"])
    again = onnxruntime.InferenceSession(chain([region(2.0)]).SerializeToString(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x_of(2)})[0], x_of(2) + 1)
    np.testing.assert_array_equal(again.run(None, {"x": x_of(2)})[0], x_of(2) + 2)


@scenario()
def functions_inside_subgraphs() -> None:
    """A custom node in both branches of an If; the image is in the outer graph."""
    from onnx import TensorProto, helper

    host = Host()
    model = chain([region(1.0, "outer")])
    info = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4])
    branches = []
    for value in (10.0, 20.0):
        inner = chain([region(value, f"inner{value:g}", carry=False)]).graph.node[0]
        inner.input[0], inner.output[0] = "y", "z"
        branches.append(helper.make_graph([inner], f"branch{value:g}", [], [info]))
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["flag"], ["out"], then_branch=branches[0], else_branch=branches[1]))
    model.graph.output[0].name = "out"
    session = onnxruntime.InferenceSession(model.SerializeToString(), host.options(), providers=["CPUExecutionProvider"])
    for flag, value in ((True, 10), (False, 20)):
        np.testing.assert_array_equal(session.run(None, {"x": x_of(2), "flag": np.array(flag)})[0], x_of(2) + np.float32(1) + np.float32(value))


@scenario()
def hundreds_of_inputs_outputs_and_launches() -> None:
    """A node as chains make them: each launch adds one of 600 weights' buffers to the last result, in two scratch slots by turns."""
    from onnx import numpy_helper

    host, launches, weights = Host(), 300, 600
    lines = ["tilewright 1", *["output f32 i0.0 4"] * 20, "scratch i0.0*16", "scratch i0.0*16", f"image {digest(PTX_ONLY)}"]
    for i in range(launches):
        source, target = "in 0 0" if i == 0 else f"ws {(i - 1) % 2} 0", f"out {i - launches + 20} 0" if i >= launches - 1 else f"ws {i % 2} 0"
        lines += ["launch 0 add 128 0 ceildiv(i0.0*4,128) 1 1", f"arg {source}", f"arg {target}", "arg i32 i0.0*i600.0*4", "arg f32 1.0"]
    model = chain([Region("FusedConvRegion_portable_0", "long", {"plan_portable": "\n".join(lines) + "\n", **carried(PTX_ONLY)}, 20)])
    names = [f"w{i}" for i in range(weights)]
    model.graph.node[0].input[1:] = names
    model.graph.initializer.extend(numpy_helper.from_array(np.array([float(i)], np.float32), n) for i, n in enumerate(names))
    model.functions[0].input[1:] = names
    model.graph.output[0].name = model.graph.node[0].output[19]
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = host.options()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": x_of(3)})[0], x_of(3) + 300, rtol=1e-5)
    assert len(host.launches()) == 2 * launches


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]][0]()
