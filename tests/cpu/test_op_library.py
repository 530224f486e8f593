"""The op library as users meet it on a machine without a GPU: registering changes nothing but one line on standard error."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnxruntime
import pytest

from image_bytes import PTX, container
from oplib import REPOSITORY, build, library
from region_models import Region, add_plan, carried, chain
from tilewright import custom_ops
from tilewright.optimizer.target import _tables, target_class

IMAGE = container((PTX, 80, 0, b"no code at all"))
MODEL = chain(
    [
        Region("FusedConvRegion_portable_0", "first", {"plan_portable": add_plan(IMAGE, 1.0), **carried(IMAGE)}),
        Region("FusedConvRegion_sm90a_1", "second", {"plan_sm90a": add_plan(IMAGE, 1.0)}),
        Region("FusedConvRegion_portable_0", "third", {"plan_portable": add_plan(IMAGE, 1.0)}),
    ]
)
needs_no_gpu = pytest.mark.skipif(custom_ops.supported(), reason="a GPU is here: its driver would refuse the image, which holds no code")


@pytest.fixture(autouse=True)
def fresh_library(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_LIBRARY", str(build() / "libtilewright_ops.so"))
    monkeypatch.setenv("TILEWRIGHT_LOG", "off")


def x_of(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, 4), np.float32)


def check(session: onnxruntime.InferenceSession) -> None:
    for rows in (1, 5, 0):
        np.testing.assert_array_equal(session.run(None, {"x": x_of(rows)})[0], 8 * x_of(rows))


def test_the_model_is_valid():
    onnx.checker.check_model(MODEL, full_check=True)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("registered", [True, False])
def test_bodies_run_on_the_cpu(level, registered):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if registered:
        custom_ops.register(options)
    check(onnxruntime.InferenceSession(MODEL.SerializeToString(), options, providers=["CPUExecutionProvider"]))


def test_session_takes_a_path_and_bytes(tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    for model in (tmp_path / "model.onnx", str(tmp_path / "model.onnx"), MODEL.SerializeToString()):
        check(custom_ops.session(model, ["CPUExecutionProvider"]))


@needs_no_gpu
def test_session_without_a_gpu_uses_the_cpu():
    session = custom_ops.session(MODEL.SerializeToString(), cuda_graph=True)
    assert session.get_providers() == ["CPUExecutionProvider"]
    check(session)


@needs_no_gpu
def test_require_kernels_names_nodes_and_reason():
    with pytest.raises(custom_ops.OpLibraryError, match=r"3 of the model's nodes .* \(first, second, third\): the session has no CUDA provider"):
        custom_ops.session(MODEL.SerializeToString(), require_kernels=True)
    plain = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Abs(x) }')
    custom_ops.session(plain.SerializeToString(), require_kernels=True)  # nothing to require


def test_require_kernels_looks_into_subgraphs():
    from tilewright.custom_ops.loader import _custom_nodes

    inner = chain([Region(name="inner")]).graph
    graph = onnx.helper.make_graph([onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)], "g", [], [])
    assert [node.name for node in _custom_nodes(graph)] == ["inner", "inner"]


@needs_no_gpu
def test_status_says_why():
    check(custom_ops.session(MODEL.SerializeToString()))
    status = custom_ops.status()
    assert status["registered"] == [] and status["devices"] == [] and status["launches"] == 0
    assert "driver" in status["reason"] and status["reason"] == status["driver_problem"]
    assert status["runtime"] == onnxruntime.__version__
    assert not custom_ops.supported()


def test_target_classes_are_those_of_the_optimizer():
    assert sorted(custom_ops.status()["classes"]) == sorted(target_class(name).op_suffix for name in _tables()["target"])


def test_registering_twice_and_in_several_sessions():
    options = onnxruntime.SessionOptions()
    custom_ops.register(options)
    custom_ops.register(options)
    check(onnxruntime.InferenceSession(MODEL.SerializeToString(), options, providers=["CPUExecutionProvider"]))
    check(custom_ops.session(MODEL.SerializeToString(), ["CPUExecutionProvider"], session_options=options))


def test_two_sessions_in_threads():
    sessions = [custom_ops.session(MODEL.SerializeToString(), ["CPUExecutionProvider"]) for _ in range(2)]
    errors: list[BaseException] = []

    def work(session: onnxruntime.InferenceSession) -> None:
        try:
            for _ in range(50):
                check(session)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that has registered the library, then runs ``code``."""
    start = f"import onnxruntime, sys; o = onnxruntime.SessionOptions(); o.register_custom_ops_library({str(library().path)!r}); "
    return subprocess.run([sys.executable, "-c", start + code], env={"PATH": "", **environment}, capture_output=True, text=True, check=True)


@needs_no_gpu
def test_one_line_says_that_nothing_was_registered():
    lines = run(f"onnxruntime.SessionOptions().register_custom_ops_library({str(library().path)!r})").stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("tilewright: no kernels registered: no NVIDIA driver")
    assert run("", TILEWRIGHT_LOG="off").stderr == ""


def test_runtimes_too_old_and_too_new():
    """Asked through ONNX Runtime's entry point, by runtimes that never had the API of 1.18."""
    code = f"""
import ctypes, json, os
library = ctypes.CDLL({str(library().path)!r})
library.tilewright_status.restype = ctypes.c_char_p
get_api, get_version = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32), ctypes.CFUNCTYPE(ctypes.c_char_p)
class Base(ctypes.Structure):
    _fields_ = [("get_api", get_api), ("get_version", get_version)]
for version in (b"1.17.3", b"1.33.0", b"2.0.0", b"nightly"):
    base = Base(get_api(lambda number: None), get_version(lambda: version))
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == 0
    print(json.loads(library.tilewright_status())["reason"])
os.environ["TILEWRIGHT_ALLOW_UNTESTED_RUNTIME"] = "1"
assert library.RegisterCustomOps(None, ctypes.byref(base)) == 0
print(json.loads(library.tilewright_status())["reason"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    newer = "is newer than the tested 1.32 (TILEWRIGHT_ALLOW_UNTESTED_RUNTIME=1 tries it)"
    assert done.stdout.splitlines() == [
        "ONNX Runtime 1.17.3 is older than 1.18",
        f"ONNX Runtime 1.33.0 {newer}",
        f"ONNX Runtime 2.0.0 {newer}",
        f"ONNX Runtime nightly {newer}",
        "ONNX Runtime nightly is older than 1.18",  # the switch let it through, and it has no API
    ]


def test_library_path_errors(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_LIBRARY", str(tmp_path / "nowhere.so"))
    with pytest.raises(custom_ops.OpLibraryError, match=r"TILEWRIGHT_LIBRARY names .*nowhere.so, which is no file"):
        custom_ops.library_path()
    assert not custom_ops.supported()
    monkeypatch.delenv("TILEWRIGHT_LIBRARY")
    monkeypatch.setattr("tilewright.custom_ops.loader.LIBRARY", "libnone.so")
    with pytest.raises(custom_ops.OpLibraryError, match=r"libnone\.so is not built"):
        custom_ops.library_path()


def test_a_torn_onnxruntime_says_how_to_repair_it(monkeypatch):
    monkeypatch.delattr(onnxruntime, "InferenceSession")
    with pytest.raises(custom_ops.OpLibraryError, match="repair it with `pip uninstall"):
        custom_ops.session(MODEL.SerializeToString())


def test_status_is_json_whatever_the_thread():
    results: list[dict[str, object]] = []
    threads = [threading.Thread(target=lambda: results.append(custom_ops.status())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(result == results[0] for result in results)
    assert json.loads(json.dumps(results[0]))["version"] == (REPOSITORY / "src/tilewright/__init__.py").read_text().split('"')[-2]
