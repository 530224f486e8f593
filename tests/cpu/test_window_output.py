"""Output sizes of windows, as launch expressions and as inferred shapes, against what ONNX Runtime gives, also where the image is smaller than the window."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest

from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.launch import dim
from tilewright.optimizer.lower.dims import window_output
from tilewright.optimizer.plan.regions.region import Window

WINDOWS = list(itertools.product((2, 3, 5), (1, 2, 3), (0, 1), (1, 2)))  # kernel, stride, pads, dilation


def pool(kernel: int, stride: int, pad: int, dilation: int, height: int | str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, {height}, 3] x) => (float[a, b, c, d] y) {{
        y = MaxPool<kernel_shape = [{kernel}, 1], strides = [{stride}, 1], pads = [{pad}, 0, {pad}, 0], dilations = [{dilation}, 1]>(x)
    }}"""
    )


@pytest.mark.parametrize(("kernel", "stride", "pad", "dilation"), WINDOWS)
def test_pooling_gives_as_many_rows_as_onnx_runtime(kernel: int, stride: int, pad: int, dilation: int) -> None:
    if pad >= kernel:
        pytest.skip("ONNX Runtime refuses padding as large as the window")
    session = onnxruntime.InferenceSession(pool(kernel, stride, pad, dilation, "H").SerializeToString(), providers=["CPUExecutionProvider"])
    window = Window((kernel, 1), (stride, 1), (pad, 0, pad, 0), (dilation, 1))
    rows = window_output(window, 0, dim(0, 2), pooling=True)
    extent = (kernel - 1) * dilation + 1 - 2 * pad
    for height in range(max(1, extent - stride + 1), 12):
        (given,) = session.run(None, {"x": np.zeros((1, 2, height, 3), np.float32)})
        assert rows.evaluate([(1, 2, height, 3)]) == given.shape[2], height
        view = View(pool(kernel, stride, pad, dilation, height))
        assert infer(view).shape(view.graph.outputs[0]) == given.shape, height
