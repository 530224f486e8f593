"""One runtime, one mode, for tools/test_runtimes: needs nothing but numpy and the onnxruntime of its environment.

`python runtime_check.py absent|registered|kernels MODEL BUILD_FOLDER`; the model is a chain of four regions whose bodies double and whose kernels
add 1, 2, 4 and 8. `python runtime_check.py attention FOLDER`: models whose attention was fused, each beside its inputs and its answer.
"""

import ctypes
import json
import os
import sys

import numpy as np
import onnxruntime

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def main(mode: str, model: str, folder: str) -> None:
    library = os.path.join(folder, "libtilewright_ops_host.so" if mode == "kernels" else "libtilewright_ops.so")
    if mode == "kernels":
        os.environ["TILEWRIGHT_ALLOW_UNTESTED_RUNTIME"] = "1"
        ctypes.CDLL(os.path.join(folder, "libfake_cuda.so"), mode=ctypes.RTLD_GLOBAL)
    for level in LEVELS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        if mode != "absent":
            options.register_custom_ops_library(library)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for rows in (3, 1, 0, 5):
            x = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
            expected = x + np.float32(1) + np.float32(2) + np.float32(4) + np.float32(8) if mode == "kernels" else 16 * x
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    if mode == "absent":
        print(onnxruntime.__version__, "bodies")
        return
    c = ctypes.CDLL(library)
    c.tilewright_status.restype = ctypes.c_char_p
    status = json.loads(c.tilewright_status())
    assert status["runtime"] == onnxruntime.__version__, status
    if mode == "kernels":
        assert status["registered"] == ["sm90a", "sm90", "portable"] and status["reason"] == "", status
        assert status["nodes"] == 4 * len(LEVELS) and status["launches"] == 3 * 4 * len(LEVELS), status
    else:
        untested = "newer than the tested" in status["reason"]
        assert status["registered"] == [] and (untested or "libcuda.so.1 was not found" in status["reason"] or status["devices"]), status
    print(onnxruntime.__version__, "kernels" if mode == "kernels" else f"bodies: {status['reason']}")


def attention(folder: str) -> None:
    models = sorted(name for name in os.listdir(folder) if name.endswith(".onnx"))
    for name in models:
        feeds = dict(np.load(os.path.join(folder, f"{name[:-5]}.npz")))
        answer = feeds.pop("answer").astype(np.float64)
        for level in LEVELS:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
            session = onnxruntime.InferenceSession(os.path.join(folder, name), options, providers=["CPUExecutionProvider"])
            error = np.linalg.norm(session.run(None, feeds)[0] - answer) / np.linalg.norm(answer)
            assert error <= 1e-2, f"{name} at {level}: {error:.1e}"
    print(onnxruntime.__version__, f"{len(models)} models")


if __name__ == "__main__":
    attention(sys.argv[2]) if sys.argv[1] == "attention" else main(*sys.argv[1:])
