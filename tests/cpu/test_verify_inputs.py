"""Inputs to verify on: seeded ones by what the model says of them, and those of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from corpus.case import parsed
from tilewright.optimizer.config import OptimizeConfig
from tilewright.optimizer.errors import ModelError, UsageError
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.verify.inputs import MAX_ELEMENTS, index_bound, load_inputs, random_array, trial_inputs

F32 = np.float32

# ---- inputs


def trials(model: ModelProto, seed: int = 0, **options: Any) -> list[dict[str, np.ndarray]]:
    view = View(model)
    return list(trial_inputs(view, infer(view), OptimizeConfig(**options), seed))


def shapes_of(model: ModelProto, **options: Any) -> list[dict[str, tuple[int, ...]]]:
    return [{k: v.shape for k, v in feeds.items()} for feeds in trials(model, **options)]


# NOTE: the text form holds float16 as bits: 14336 is 0.5, 21504 is 64.
MIXED = """g (float[N,3,H,H] x, float16[N,L] h, int32[N] i, bool[2] b, double d, string[N] s, uint8[?,4] u) => (float[N,3,H,H] y) {
  y = Neg(x)
}"""


def test_inputs_have_the_types_and_shapes_that_the_model_declares() -> None:
    (first, *rest) = trials(parsed(MIXED))
    assert {k: (v.dtype.name, v.shape) for k, v in first.items()} == {
        "x": ("float32", (2, 3, 64, 64)), "h": ("float16", (2, 64)), "i": ("int32", (2,)), "b": ("bool", (2,)), "d": ("float64", ()), "s": ("object", (2,)),
        "u": ("uint8", (2, 4)),
    }  # fmt: skip
    assert all(isinstance(v, np.ndarray) for v in first.values())
    for feeds in rest:
        n, _, h, w = feeds["x"].shape
        assert h == w and feeds["h"].shape[0] == feeds["i"].shape[0] == feeds["s"].shape[0] == n, "a named dim has one size"


def test_inputs_are_seeded() -> None:
    model = parsed(MIXED)
    first, again, other = trials(model)[0], trials(model)[0], trials(model, seed=1)[0]
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not np.array_equal(first["x"], other["x"])
    assert abs(float(first["x"].mean())) < 0.05 and float(first["x"].std()) == pytest.approx(1.0, rel=0.05)


def test_fixed_shapes_are_tried_once() -> None:
    assert shapes_of(parsed("g (float[2,3,8,8] x) => (float[2,3,8,8] y) { y = Neg(x) }")) == [{"x": (2, 3, 8, 8)}]


def test_sizes_respect_ranges_and_options() -> None:
    model = parsed("g (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Neg(x) }")
    assert {s["x"] for s in shapes_of(model, opt_shapes={"x": (5, 3, 20, 24)})} == {(5, 3, 20, 24)}
    for shapes in shapes_of(model, dims={"N": (4, 6), "H": (100, None), "W": (1, 12)}):
        n, _, h, w = shapes["x"]
        assert 4 <= n <= 6 and h >= 100 and w <= 12
    for shapes in shapes_of(model, min_shapes={"x": (3, 3, 40, 40)}, max_shapes={"x": (3, 3, 48, 48)}):
        n, _, h, w = shapes["x"]
        assert n == 3 and 40 <= h <= 48 and 40 <= w <= 48


def test_guesses_that_would_fill_the_memory_are_not_tried() -> None:
    """64 to the power of six is a tebibyte; a size that the model fixes, or that is the smallest there is, is tried all the same."""
    deep = "g (float[N,A,B,C,D,E,F] x) => (float[N,A,B,C,D,E,F] y) { y = Neg(x) }"
    tried = [f["x"] for f in shapes_of(parsed(deep))]
    assert tried and (2, 2, 2, 2, 2, 2, 2) in tried and all(np.prod(t) <= MAX_ELEMENTS for t in tried)
    large = "g (bool[N,5000,5000] x) => (bool[N,5000,5000] y) { y = Not(x) }"
    assert shapes_of(parsed(large)) == [{"x": (1, 5000, 5000)}]


def test_initializers_that_are_inputs_keep_their_values() -> None:
    model = parsed("g (float[2,3] x, float[3] w) => (float[2,3] y) { y = Mul(x, w) }", {"w": (3,)})
    assert [list(feeds) for feeds in trials(model)] == [["x"]]


def test_no_inputs_are_made_for_what_is_no_tensor() -> None:
    assert trials(parsed("g (seq(float[2]) s) => (float[?] y) { y = ConcatFromSequence<axis=0>(s) }")) == []


GATHERS = {
    "table": ("y = Gather(t, i)", 7),
    "last axis": ("y = Gather<axis=1>(t, i)", 5),
    "negative axis": ("y = Gather<axis=-2>(t, i)", 7),
    "through casts": ("c = Cast<to=7>(i)  z = Constant<value_ints=[0]>()  u = Unsqueeze(c, z)  y = Gather(t, u)", 7),
    "shortest of two": ("a = Gather(t, i)  y = Gather<axis=1>(t, i)", 5),
    "elements": ("y = GatherElements<axis=1>(t, i)", 5),
    "row and column": ("y = GatherND(t, i)", 5),
    "no table": ("y = Cast<to=1>(i)", None),
    "the table itself": ("z = Constant<value_ints=[0]>()  y = Gather(i, z)", None),
}


@pytest.mark.parametrize("name", GATHERS)
def test_integers_stay_inside_the_table_that_they_index(name: str) -> None:
    body, bound = GATHERS[name]
    model = parsed(f"g (int64[2,2] i) => (float[?] y) {{ {body} }}", {"t": (7, 5)})
    view = View(model)
    assert index_bound(view.graph.inputs[0], infer(view)) == bound
    values = np.stack([feeds["i"] for seed in range(50) for feeds in trials(model, seed)])
    assert values.min() == 0 and values.max() == (bound or 2) - 1


@pytest.mark.parametrize("dtype", [
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.COMPLEX64, TensorProto.UINT8, TensorProto.INT8,
    TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING,
])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 5)])
def test_arrays_of_every_type(dtype: int, shape: tuple[int, ...]) -> None:
    made = random_array(np.random.default_rng(0), dtype, shape)
    assert isinstance(made, np.ndarray) and made.shape == shape
    assert made.dtype == (object if dtype == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(dtype))


def test_an_empty_table_does_not_stop_it() -> None:
    assert random_array(np.random.default_rng(0), TensorProto.INT64, (3,), bound=0).tolist() == [0, 0, 0]


# ---- inputs of a file

READ = parsed("g (float[N,2] x, string[N] s, float[2] w) => (float[N,2] y) { y = Mul(x, w) }", {"w": (2,)})


def read(folder: Path, **arrays: Any) -> dict[str, np.ndarray]:
    np.savez(folder / "in.npz", **arrays)
    return load_inputs(folder / "in.npz", View(READ))


def test_inputs_file(tmp_path: Path) -> None:
    x, words = np.ones((3, 2), F32), np.array(["a", "bc", ""])
    got = read(tmp_path, x=x, s=words, unknown=x)
    assert list(got) == ["x", "s"] and np.array_equal(got["x"], x)
    assert got["s"].dtype == object and got["s"].tolist() == ["a", "bc", ""]
    assert list(read(tmp_path, x=x, s=words, w=np.ones(2, F32))) == ["x", "s", "w"], "an initializer may be overridden"


@pytest.mark.parametrize(("arrays", "words"), [
    ({}, "input 'x' of the model is missing; it holds nothing"),
    ({"x": np.ones((1, 2), F32), "z": np.ones(1)}, "input 's' of the model is missing; it holds x, z"),
    ({"x": np.ones((1, 2)), "s": np.array(["a"])}, "input 'x' is float64, the model takes float32"),
    ({"x": np.ones((1, 2), F32), "s": np.ones(1)}, "input 's' is float64, the model takes"),
    ({"x": np.ones((1, 2), F32), "s": np.array(["a"]), "w": np.ones(2)}, "input 'w' is float64, the model takes float32"),
])  # fmt: skip
def test_inputs_file_that_does_not_fit(tmp_path: Path, arrays: Mapping[str, np.ndarray], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(tmp_path, **arrays)


def test_inputs_file_for_a_sequence(tmp_path: Path) -> None:
    model = parsed("g (seq(float[2]) s) => (float[?] y) { y = ConcatFromSequence<axis=0>(s) }")
    np.savez(tmp_path / "in.npz", s=np.ones((1, 2), F32))
    with pytest.raises(UsageError, match="input 's' of the model is no tensor"):
        load_inputs(tmp_path / "in.npz", View(model))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 cut short"])
def test_inputs_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "in.npz").write_bytes(content)
    with pytest.raises(ModelError, match=r"in\.npz: cannot be read"):
        load_inputs(tmp_path / "in.npz", View(READ))
