"""The verify stage: error figures, which bound holds for the whole model, what cannot be compared, bisection, timing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from corpus.case import parsed, weights
from off_sessions import Off, bounds_of_kernels
from rule_harness import run
from tilewright.optimizer.config import OptimizeConfig
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.graph.load import LoadedModel, load
from tilewright.optimizer.graph.precision import correct_types, to_half
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.result import Check
from tilewright.optimizer.verify import bench, verify
from tilewright.optimizer.verify.bisect import bisect
from tilewright.optimizer.verify.compare import OutputError, compare, worst
from tilewright.optimizer.verify.session import cpu_session

F32 = np.float32
NAN, INF = np.nan, np.inf

# ---- compare


@pytest.mark.parametrize(("reference", "value", "relative", "largest"), [
    ([3.0, 4.0], [3.0, 4.0], 0.0, 0.0),
    ([3.0, 4.0], [3.0, 4.5], 0.1, 0.5),
    ([3.0, 4.0], [0.0, 0.0], 1.0, 4.0),
    ([3.0, 4.0], [-3.0, -4.0], 2.0, 8.0),
    ([0.0, 0.0], [0.0, 0.0], 0.0, 0.0),
    ([0.0, 0.0], [0.6, 0.8], 1.0, 0.8),  # no measure: the difference itself
    ([], [], 0.0, 0.0),
    ([NAN, 3.0, 4.0], [NAN, 3.0, 4.5], 0.1, 0.5),  # equal NaN and infinities do not count
    ([INF, -INF, 3.0, 4.0], [INF, -INF, 3.0, 4.5], 0.1, 0.5),
])  # fmt: skip
def test_figures(reference: list[float], value: list[float], relative: float, largest: float) -> None:
    error = compare("y", np.array(reference, F32), np.array(value, F32))
    assert (error.name, error.problem) == ("y", "")
    assert error.relative == pytest.approx(relative) and error.max_abs == pytest.approx(largest)


def test_figures_do_not_overflow_the_type_of_the_values() -> None:
    error = compare("y", np.full(1000, 6e4, np.float16), np.full(1000, 3e4, np.float16))
    assert error.relative == pytest.approx(0.5, rel=1e-3) and error.problem == ""


@pytest.mark.parametrize(("reference", "value", "words"), [
    ([1.0, 2.0], [1.0, NAN], "1 elements are NaN on one side only"),
    ([NAN, NAN], [1.0, 2.0], "2 elements are NaN on one side only"),
    ([NAN, 1.0], [1.0, NAN], "2 elements are NaN on one side only"),
    ([1.0, INF], [1.0, 2.0], "1 elements are infinite on one side only"),
    ([1.0, 2.0], [-INF, 2.0], "1 elements are infinite on one side only"),
    ([INF, 2.0], [-INF, 2.0], "1 elements are infinite on one side only"),
    ([INF, 2.0], [NAN, 2.0], "1 elements are NaN on one side only"),
])  # fmt: skip
def test_what_no_figure_says(reference: list[float], value: list[float], words: str) -> None:
    error = compare("y", np.array(reference, F32), np.array(value, F32))
    assert error.problem == words and error.relative == 1.0 and str(error) == f"y: {words}"
    assert not Check("y", error.relative, error.max_abs, bound=1e9, problem=error.problem).passed, "a problem fails whatever the bound"


@pytest.mark.parametrize(("value", "same_dtype", "words"), [
    (np.zeros((2, 3), np.float64), True, "dtype float64, expected float32"),
    (np.zeros((2, 3), np.float16), True, "dtype float16, expected float32"),
    (np.zeros((2, 3), np.float64), False, "dtype float64, expected float32"),
    (np.zeros((2, 3), np.int32), False, "dtype int32, expected float32"),
    (np.zeros((3, 2), F32), True, "shape (3, 2), expected (2, 3)"),
    (np.zeros((1, 3), F32), False, "shape (1, 3), expected (2, 3)"),
    (np.zeros(6, F32), True, "shape (6,), expected (2, 3)"),
])  # fmt: skip
def test_type_and_shape(value: np.ndarray, same_dtype: bool, words: str) -> None:
    assert compare("y", np.zeros((2, 3), F32), value, same_dtype).problem == words


def test_half_and_single_are_the_same_where_the_precision_may_change() -> None:
    half, single = np.array([3.0, 4.5], np.float16), np.array([3.0, 4.0], F32)
    for reference, value in ((single, half), (half, single)):
        error = compare("y", reference, value, same_dtype=False)
        assert error.problem == "" and error.max_abs == 0.5
    assert compare("y", np.zeros(2, np.int64), np.zeros(2, np.int32), same_dtype=False).problem == "dtype int32, expected int64"


def test_discrete_values_differ_or_not() -> None:
    assert compare("y", np.arange(4), np.arange(4)).problem == ""
    error = compare("y", np.arange(4), np.array([0, 1, 2, 7]))
    assert error.relative == 0.25 and error.problem == "25.00% of its values differ"
    assert compare("y", np.array([True, False]), np.array([True, True])).relative == 0.5
    words = np.array(["a", "b"], object)
    assert compare("y", words, words.copy()).problem == "" and compare("y", words, words[::-1]).relative == 1.0
    assert compare("y", np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int64)) == OutputError("y", 0.0, 0.0)


def test_complex_values_count_their_imaginary_part() -> None:
    error = compare("y", np.array([3 + 4j], np.complex64), np.array([3 + 4.5j], np.complex64))
    assert error.relative == pytest.approx(0.1) and error.max_abs == pytest.approx(0.5)


def test_sequences_and_optionals() -> None:
    pair = [np.ones(2, F32), np.zeros(3, F32)]
    assert compare("s", pair, [a.copy() for a in pair]).relative == 0.0
    error = compare("s", pair, [pair[0] * 2, pair[1]])
    assert (error.name, error.relative) == ("s[0]", 1.0)
    assert compare("s", pair, pair[:1]).problem == compare("s", pair, pair[0]).problem == "sequences of different length"
    assert compare("s", [], []).problem == "" and compare("o", None, None).problem == ""
    assert compare("o", None, pair[0]).problem == compare("o", pair[0], None).problem == "one of the two has no value"
    assert compare("m", {"a": 1.0}, {"a": 1.0}).problem == "" and compare("m", {"a": 1.0}, {"a": 2.0}).problem == "values differ"


def test_probabilities_are_measured_on_their_scale() -> None:
    """A root mean square below ``scale`` is not taken for the measure; above it, it is."""
    small, off = np.full(100, 1e-5, F32), np.full(100, 2e-5, F32)
    assert compare("p", small, off).relative == pytest.approx(1.0)
    assert compare("p", small, off, scale=0.1).relative == pytest.approx(1e-4)
    assert compare("p", small * 1e5, off * 1e5, scale=0.1).relative == pytest.approx(1.0)


def test_the_worst_has_a_problem_or_the_largest_figure() -> None:
    good, bad, broken = OutputError("a", 0.1, 9.0), OutputError("b", 0.2, 0.0), OutputError("c", 0.0, 0.0, "dtype")
    assert worst([good, bad]) is bad and worst([good, broken, bad]) is broken
    assert worst([], "none") == OutputError("none", 0.0, 0.0)
    assert str(bad) == "b: relative 2.00e-01, max 0.00e+00"


@pytest.mark.parametrize(("relative", "problem", "passed"), [(1e-4, "", True), (1.01e-4, "", False), (NAN, "", False), (0.0, "shape", False)])
def test_a_check_passes_up_to_its_bound(relative: float, problem: str, passed: bool) -> None:
    assert Check("y", relative, 0.0, 1e-4, problem).passed is passed


# ---- the whole model: which bound holds


SINGLE = parsed("g (float[N,3,8,8] x) => (float[N,4,8,8] y) { c = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(c) }", {"w": (4, 3, 3, 3)})
HALF = parsed(
    "g (float16[N,3,8,8] x) => (float16[N,4,8,8] y) { c = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(c) }",
    {"w": weights("w", 4, 3, 3, 3).astype(np.float16)},
)


def checks(model: ModelProto, folder: Path, rewritten: ModelProto | None = None, canonical: ModelProto | None = None, **options: Any) -> list[Check]:
    """The checks of ``rewritten`` (the model itself by default) against ``model``."""
    onnx.save(rewritten or model, folder / "fast.onnx")
    loaded, config = load(model), OptimizeConfig(**options)
    return verify.verify(reference(loaded, config), canonical, folder / "fast.onnx", config, precision_changed=False)


def reference(loaded: LoadedModel, config: OptimizeConfig) -> verify.Reference:
    view = View(loaded.proto)
    return verify.reference(loaded, view, infer(view), config)


def with_weight_error(model: ModelProto, error: float) -> ModelProto:
    """``model`` with its first weights off by a relative error."""
    copy = ModelProto()
    copy.CopyFrom(model)
    tensor = copy.graph.initializer[0]
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((values * (1 + error)).astype(values.dtype), tensor.name))
    return copy


@pytest.mark.parametrize(("error", "passed"), [(0.0, True), (0.9e-4, True), (1.1e-4, False), (0.5, False), (NAN, False)])
def test_bound_of_float32_bodies(tmp_path: Path, error: float, passed: bool) -> None:
    (check,) = checks(SINGLE, tmp_path, with_weight_error(SINGLE, error))
    assert check.what == "function bodies, CPU: y" and check.bound == 1e-4 and check.passed is passed
    if passed:
        assert check.relative == pytest.approx(error, abs=1e-6)


def test_half_arithmetic_that_has_no_error_of_its_own(tmp_path: Path) -> None:
    """ONNX Runtime takes casts back to back out, so that this is float32 in truth; what is made of it may round all the same."""
    model = parsed("g (float[2,8] x) => (float[2,8] y) { h = Cast<to=10>(x)  n = Mul(h, h)  y = Cast<to=1>(n) }")
    ref = reference(load(model), OptimizeConfig())
    assert ref.half and checks(model, tmp_path)[0].bound == 1e-3


def test_max_error_replaces_the_bound(tmp_path: Path) -> None:
    wrong = with_weight_error(SINGLE, 1e-3)
    for max_error, passed in ((0.9e-3, False), (1.1e-3, True)):
        (check,) = checks(SINGLE, tmp_path, wrong, max_error=max_error)
        assert check.bound == max_error and check.passed is passed


def test_the_canonicalized_model_is_compared_too(tmp_path: Path) -> None:
    canonical, bodies = checks(SINGLE, tmp_path, canonical=with_weight_error(SINGLE, 1e-3))
    assert canonical.what.startswith(verify.CANONICALIZED) and not canonical.passed and bodies.passed


def test_bound_of_float16_bodies(tmp_path: Path) -> None:
    """Measured against float32 arithmetic; at least 1e-3, else 1.3 times what float16 itself costs."""
    (check,) = checks(HALF, tmp_path)
    assert check.bound == 1e-3 and 1e-5 < check.relative < 1e-3
    assert not checks(HALF, tmp_path, with_weight_error(HALF, 2e-3))[0].passed


def test_float16_that_is_worse_than_its_floor(tmp_path: Path) -> None:
    """What the float16 model without our nodes is off by sets the bound."""
    for error, passed in ((1.2e-2, True), (1.5e-2, False)):
        (check,) = checks(HALF, tmp_path, with_weight_error(HALF, error), canonical=with_weight_error(HALF, 1e-2))
        assert check.bound == pytest.approx(1.3e-2, rel=0.1) and check.passed is passed


@bounds_of_kernels
def test_bound_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: float, ours: float, bound: float, passed: bool) -> None:
    """At least 1e-3, else 1.3 times the error of ONNX Runtime's own kernels on the canonicalized model."""
    monkeypatch.setattr(verify, "gpu_available", lambda: True)
    monkeypatch.setattr(verify, "gpu_session", lambda source, kernels: Off(cpu_session(source), ours if kernels else vendor))
    *_, check = checks(SINGLE, tmp_path, canonical=SINGLE)
    assert check.what == "kernels, GPU: y" and check.bound == pytest.approx(bound, rel=1e-3) and check.passed is passed


def test_a_result_that_does_not_run(tmp_path: Path) -> None:
    broken = with_weight_error(SINGLE, 0.0)
    broken.graph.node[0].input[0] = "nobody"
    (check,) = checks(SINGLE, tmp_path, broken)
    assert not check.passed and check.problem.startswith("it does not run (")


def test_choices_are_compared_before_they_are_made(tmp_path: Path) -> None:
    model = parsed("g (float[N,3,8,8] x) => (int64[N,1,8,8] y) { c = Conv<pads=[1,1,1,1]>(x, w)  y = ArgMax<axis=1>(c) }", {"w": (4, 3, 3, 3)})
    good, bad = checks(model, tmp_path)[0], checks(model, tmp_path, with_weight_error(model, 1e-2))[0]
    assert good.passed and good.what.endswith(": c") and not bad.passed
    assert bad.relative == pytest.approx(1e-2, rel=1e-3), "the chosen channels are the same all the same"


@pytest.mark.parametrize(("model", "loads", "words"), [
    (lambda: parsed("g () => (float[2] y) { y = RandomNormal<shape=[2]>() }"), True, "every output depends on random or discrete ops"),
    (lambda: parsed('g (float[2] x) => (float[2] y) { y = com.Unknown(x) }', domains=', "com": 1'), False, "the original does not load"),
    (lambda: parsed("g (seq(float[2]) s) => (float[?] y) { y = ConcatFromSequence<axis=0>(s) }"), True, "it takes inputs that are no tensors"),
    (lambda: parsed("g (float[N,M] x) => (float[?] y) { k = Constant<value_ints=[7,11,13]>()  y = Reshape(x, k) }"), True, "runs on no input that was tried"),
], ids=["random", "unknown op", "sequence", "no size fits"])  # fmt: skip
def test_what_cannot_be_compared(model: Callable[[], ModelProto], loads: bool, words: str) -> None:
    with pytest.raises(verify.CannotCompare, match=words) as raised:
        reference(load(model()), OptimizeConfig())
    assert raised.value.loads is loads


def test_inputs_of_a_file_are_used(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.full((1, 3, 8, 8), 2, F32))
    got = reference(load(SINGLE), OptimizeConfig(inputs=tmp_path / "in.npz"))
    assert got.inputs["x"].shape == (1, 3, 8, 8) and compare("y", got.truth["y"], run(SINGLE, got.inputs)[0]).relative < 1e-6
    np.savez(tmp_path / "in.npz", x=np.ones((1, 2, 8, 8), F32))
    with pytest.raises(verify.CannotCompare, match="runs on no input that was tried"):
        reference(load(SINGLE), OptimizeConfig(inputs=tmp_path / "in.npz"))


def test_inputs_of_a_model_that_was_turned_to_half(tmp_path: Path) -> None:
    """With inputs and outputs in float16, the original's inputs are rounded for it."""
    view = View(SINGLE)
    to_half(view, infer(view), keep_io_types=False)
    half = export_model(view)
    correct_types(view, half)
    assert half.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    onnx.save(half, tmp_path / "fast.onnx")
    config = OptimizeConfig()
    (check,) = verify.verify(reference(load(SINGLE), config), None, tmp_path / "fast.onnx", config, precision_changed=True)
    assert check.passed and check.bound == 1e-3 and check.relative > 1e-5


# ---- bisection


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 40])
def test_bisection_names_the_one_at_fault(count: int) -> None:
    labels = [f"r{i}" for i in range(count)]
    for bad in labels:
        tried: list[Set[str]] = []

        def fails(active: Set[str], bad: str = bad, tried: list[Set[str]] = tried) -> bool:
            tried.append(active)
            return bad in active

        assert bisect(labels, fails) == bad
        assert len(tried) <= 1 + math.ceil(math.log2(count))


def test_bisection_with_several_or_none_at_fault() -> None:
    labels = list("abcdef")
    assert bisect(labels, lambda active: bool(active & {"c", "e"})) == "c"
    assert bisect(labels, lambda active: {"b", "e"} <= active) == "e", "the one that completes the fault"
    assert bisect(labels, lambda active: False) is None and bisect([], lambda active: True) is None


# ---- timing


class Fake:
    """Takes a number of microseconds for each run by a clock of its own."""

    def __init__(self, clock: list[float], order: list[str], name: str, durations: Sequence[float]) -> None:
        self.clock, self.order, self.name, self.durations = clock, order, name, itertools.cycle(durations)

    def run(self) -> None:
        self.order.append(self.name)
        self.clock[0] += next(self.durations) * 1e-6


def test_sessions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], list[str]()
    monkeypatch.setattr(bench.time, "perf_counter", lambda: clock[0])
    fakes: Any = {"a": Fake(clock, order, "a", [10.0]), "b": Fake(clock, order, "b", [20.0] * 7 + [60.0])}
    times = bench.interleaved(fakes, runs=40)
    assert order == ["a"] * bench.WARM_UP_RUNS + ["b"] * bench.WARM_UP_RUNS + ["a", "b"] * 40
    assert [round(v, 3) for v in (times["a"].median, times["a"].p10, times["a"].p90, times["a"].runs)] == [10, 10, 10, 40]
    assert [round(v, 3) for v in (times["b"].median, times["b"].p10, times["b"].p90)] == [20, 20, 60]


def test_slow_sessions_are_run_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(bench.time, "perf_counter", lambda: clock[0])
    slow: Any = {"slow": Fake(clock, [], "slow", [1e6])}
    assert bench.interleaved(slow, runs=100)["slow"].runs == int(bench.MAX_SECONDS) + 1
