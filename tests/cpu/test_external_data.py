"""Weights in files beside the model: above two gigabytes, shared, without a length, empty, in sub-graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from corpus import CASES
from corpus.case import parsed, weights
from end_to_end import answers, assert_same, config, optimized
from rule_harness import feeds_for
from tilewright.optimizer.pipeline import optimize

CONV_RELU = "c = Conv<pads=[1,1,1,1]>(x, w, b)  y = Relu(c)"
IMAGE = {"x": weights("image", 2, 3, 8, 8)}


def net(body: str, inputs: str, outputs: str) -> ModelProto:
    """The model of ``body`` with a weight w and a bias b."""
    return parsed(f"g (float[N,3,8,8] x{inputs}) => (float[N,4,8,8] y{outputs}) {{ {body} }}", {"w": (4, 3, 3, 3), "b": (4,)})


def external(name: str, shape: list[int], offset: int | None, length: int | None, location: str = "weights.bin") -> TensorProto:
    """A float32 tensor whose values lie in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_above_two_gigabytes(tmp_path: Path) -> None:
    """An embedding of 2.0 GiB in a sparse file beside a convolution: loaded, rewritten, verified and written by path."""
    rows, columns = 46341, 11600
    model = net(CONV_RELU + "  e = Gather(table, i)", inputs=", int64[K] i", outputs=", float[K,11600] e")
    model.graph.initializer.append(external("table", [rows, columns], 0, rows * columns * 4))
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source)
    with open(source.parent / "weights.bin", "wb") as file:
        file.truncate(rows * columns * 4 - 4)
        file.seek(0, 2)
        file.write(np.float32(2.5).tobytes())
    result = optimize(source, config(), tmp_path / "fast.onnx")
    assert len(result.regions) == 1 and result.checks and not result.not_verified and result.bytes_after > 1 << 31
    got = answers(tmp_path / "fast.onnx", {**IMAGE, "i": np.array([0, rows - 1])})
    assert got["e"].shape == (2, columns) and got["e"][1, -1] == 2.5 and np.count_nonzero(got["e"]) == 1
    assert_same({"y": answers(net(CONV_RELU, "", ""), IMAGE)["y"]}, {"y": got["y"]})
    (tmp_path / "fast.onnx.data").unlink()


def test_ranges_of_a_data_file(tmp_path: Path) -> None:
    """Two tensors of one range, one without offset, one without length in front of others, one empty: each right, nothing twice."""
    model = net(CONV_RELU + "  a = Gather(first, i)  b2 = Gather(again, i)  z = Concat<axis=0>(a, b2, rest, empty)",
                inputs=", int64[K] i", outputs=", float[M,1024] z")  # fmt: skip
    values = weights("data", 65, 1024)
    model.graph.initializer.extend([
        external("first", [64, 1024], None, None), external("again", [64, 1024], 0, 64 * 4096),
        external("rest", [1, 1024], 64 * 4096, None), external("empty", [0, 1024], 65 * 4096, 0),
    ])  # fmt: skip
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source)
    (source.parent / "weights.bin").write_bytes(values.tobytes() + b"\1" * 4096)
    done = optimized(source, tmp_path)
    tensors = {t.name: t for t in onnx.load(done.path, load_external_data=False).graph.initializer}
    assert list(tensors["first"].external_data) == list(tensors["again"].external_data)
    assert (tmp_path / "fast.onnx.data").stat().st_size < 2 * 64 * 4096
    expected = np.concatenate([values[[3, 5]], values[[3, 5]], values[64:]])
    np.testing.assert_array_equal(answers(done.path, {**IMAGE, "i": np.array([3, 5])})["z"], expected)


def test_weights_of_subgraphs_and_attributes_lie_outside(tmp_path: Path) -> None:
    """Data files of initializers inside If bodies and of Constant nodes."""
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    for name in ("conv_in_loop", "no_names"):
        onnx.save(CASES[name].build(), source, save_as_external_data=True, location="weights.bin", size_threshold=0, convert_attribute=True)
        done = optimized(source, tmp_path)
        assert done.regions == CASES[name].regions
        feeds = CASES[name].feeds() if CASES[name].feeds else feeds_for(done.before, dim=8)
        assert_same(answers(source, feeds), answers(done.path, feeds))
        (source.parent / "weights.bin").unlink()
