"""The float16 trap: variances of BatchNormalization beyond 65504, which a plain cast clamps without a word. Folded in float32 first they do no harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from corpus.case import parsed
from end_to_end import Optimized, all_nodes, answers, optimized, relative_error
from real_models import MODELS, detector_page

LARGEST = float(np.finfo(np.float16).max)


def variances(model: ModelProto) -> np.ndarray:
    """Of every BatchNormalization of ``model``, from initializers and Constant nodes."""
    values = {t.name: t for t in model.graph.initializer}
    values |= {n.output[0]: a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"}
    return np.concatenate([numpy_helper.to_array(values[n.input[4]]) for n in model.graph.node if n.op_type == "BatchNormalization"])


def detector(body: str) -> ModelProto:
    """Eight feature maps of a picture, normalized by variances from 1e7 to 9.8e7, and a mask from them."""
    rng = np.random.default_rng(0)
    text = f"g (float[N,3,H,W] x) => (float[N,1,H,W] mask, float[N,8,H,W] maps) {{ {body} s = Conv(r, v, c) mask = Sigmoid(s) }}"
    variance = np.linspace(1e7, 9.8e7, 8, dtype=np.float32)
    weight = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    weight *= np.sqrt(variance / np.square(weight).sum(axis=(1, 2, 3)))[:, None, None, None]  # as trained: what comes out has these variances
    constants = {"w": weight, "scale": (8,), "shift": (8,), "mean": np.zeros(8, np.float32), "var": variance, "v": (1, 8, 1, 1), "c": (1,)}
    return parsed(text, constants)


FOLDED = "k = Conv<pads=[1,1,1,1]>(x, w) maps = BatchNormalization(k, scale, shift, mean, var) r = Relu(maps)"
NOT_FOLDED = "maps = Conv<pads=[1,1,1,1]>(x, w) b = BatchNormalization(maps, scale, shift, mean, var) r = Relu(b)"


def masks(done: Optimized, x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The answers of the original, of a plain cast, and of what `optimize` wrote, which are the same with and without the op library."""
    original = answers(done.before, {"x": x})[name]
    cast = answers(convert_float_to_float16(done.before, keep_io_types=True), {"x": x})[name]
    ours = answers(done.path, {"x": x})[name]
    np.testing.assert_array_equal(ours, answers(done.path, {"x": x}, library=True)[name])
    assert original.dtype == cast.dtype == ours.dtype == np.float32
    return original, cast, ours


def types(model: ModelProto) -> set[int]:
    """Types of the weights."""
    return {t.data_type for t in model.graph.initializer}


@pytest.mark.parametrize(("body", "normalized"), [(FOLDED, 0), (NOT_FOLDED, 1)], ids=["folded", "not_folded"])
def test_small_detector(body: str, normalized: int, tmp_path: Path) -> None:
    """One that can be folded, and one that cannot, because what comes before it is an output: that one stays in float32."""
    model = detector(body)
    assert variances(model).min() > LARGEST
    done = optimized(model, tmp_path, precision="fp16")
    assert done.regions and onnx.TensorProto.FLOAT16 in types(done.after)
    assert [n.op_type for n in all_nodes(done.after.graph)].count("BatchNormalization") == normalized
    x = np.random.default_rng(1).standard_normal((2, 3, 24, 20)).astype(np.float32)
    original, cast, ours = masks(done, x, "mask")
    assert relative_error(ours, original) < 5e-3
    assert relative_error(cast, original) > 0.1


def overlap(a: np.ndarray, b: np.ndarray, threshold: float = 0.3) -> float:
    """Intersection over union of two masks."""
    return float(((a > threshold) & (b > threshold)).sum() / ((a > threshold) | (b > threshold)).sum())


@pytest.mark.slow
def test_text_detector(tmp_path: Path) -> None:
    """PP-OCRv4's on a printed page, at two sizes: what a plain cast finds overlaps with the text by half, ours by more than 0.99."""
    path = MODELS["ocr_det"].path()
    assert variances(onnx.load(path)).max() > 9e7
    done = optimized(path, tmp_path, precision="fp16")
    assert done.result.checks and not {n.op_type for n in all_nodes(done.after.graph)} & {"BatchNormalization", "Conv"}
    for width, height in ((384, 192), (512, 256)):
        original, cast, ours = masks(done, detector_page(width, height), "sigmoid_0.tmp_0")
        assert (original > 0.3).mean() > 0.1
        assert overlap(ours, original) > 0.99
        assert overlap(cast, original) < 0.75
