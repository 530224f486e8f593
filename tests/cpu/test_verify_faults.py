"""Faults planted in regions: found, named, and dropped or refused; no kernels are compiled (images without code stand in for them)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, TensorProto

from corpus.case import parsed, weights
from end_to_end import Optimized, answers, assert_same, config
from off_sessions import Off, bounds_of_kernels
from plan_harness import emit, plan, stub_images
from tilewright.optimizer import pipeline
from tilewright.optimizer.emit import nodes as emit_nodes
from tilewright.optimizer.errors import VerificationError
from tilewright.optimizer.lower import regions as lower_regions
from tilewright.optimizer.lower.lowered import LoweredRegion
from tilewright.optimizer.pipeline import optimize
from tilewright.optimizer.result import Check
from tilewright.optimizer.verify import submodels, verify
from tilewright.optimizer.verify.session import cpu_session
from tilewright.optimizer.verify.submodels import check_region

LENGTH = 6
X = {"x": np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)}


def chain(length: int = LENGTH, dtype: type = np.float32, twins: bool = False) -> ModelProto:
    """Convolutions called c0, c1, ... with another number of channels each (all with 4 for ``twins``), a Relu after each."""
    channels = [4, *(4 if twins else 5 + i for i in range(length))]
    body = "  ".join(
        f"c{i} = Conv<pads=[1,1,1,1]>({f'r{i - 1}' if i else 'x'}, w{i})  {f'r{i}' if i < length - 1 else 'y'} = Relu(c{i})" for i in range(length)
    )
    constants = {f"w{i}": weights(f"w{i}", channels[i + 1], channels[i], 3, 3).astype(dtype) for i in range(length)}
    kind = "float16" if dtype is np.float16 else "float"
    model = parsed(f"g ({kind}[N,4,8,8] x) => ({kind}[N,{channels[-1]},8,8] y) {{ {body} }}", constants)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def label(i: int) -> str:
    return f"c{i}"


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(specs: Any, *_: Any) -> Any:
        return SimpleNamespace(images=stub_images([SimpleNamespace(specs=specs)])["portable"], failures={})  # type: ignore[list-item]

    monkeypatch.setattr(pipeline, "build", build)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the bodies of the regions that are named wrong: ``change`` gets the body."""
    right = emit_nodes.function_body

    def plant(*labels: str, change: Callable[[FunctionProto], None] = negated) -> None:
        def wrong(lowered: LoweredRegion, opset: int) -> FunctionProto:
            body = right(lowered, opset)
            if lowered.region.label in labels:
                change(body)
            return body

        monkeypatch.setattr(emit_nodes, "function_body", wrong)

    return plant


def negated(body: FunctionProto) -> None:
    body.node[-1].op_type = "Neg"


def optimized(model: ModelProto, folder: Path, **options: Any) -> Optimized:
    onnx.save(model, folder / "model.onnx")
    result = optimize(folder / "model.onnx", config(**options), folder / "fast.onnx")
    return Optimized(model, onnx.load(folder / "fast.onnx"), folder / "fast.onnx", result)


def refusals(done: Optimized) -> dict[str, str]:
    """Reasons of the regions that were dropped, by label."""
    return {r.nodes[0]: r.reason for r in done.result.refusals if "differ" in r.reason}


def assert_dropped(done: Optimized, *labels: str) -> None:
    assert set(refusals(done)) == set(labels)
    assert {r.name for r in done.result.regions} == {label(i) for i in range(LENGTH)} - set(labels)
    assert all(c.passed for c in done.result.checks)
    assert_same(answers(done.before, X), answers(done.path, X))


def assert_refused(model: ModelProto, folder: Path, *words: str, **options: Any) -> None:
    with pytest.raises(VerificationError, match="nothing was written") as raised:
        optimized(model, folder, **options)
    assert raised.value.exit_code == 3 and [p.name for p in folder.iterdir()] == ["model.onnx"]
    for word in words:
        assert word in str(raised.value)


# ---- one region by itself


def region_checks(model: ModelProto, lower: Callable[[LoweredRegion], LoweredRegion] = lambda region: region) -> list[Check]:
    planned = plan(model)
    return [check for node in emit(planned, [lower(r) for r in planned.lower()]).nodes for check in check_region(node, planned.shapes)]


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1e-4), (np.float16, 1e-3)])
def test_right_regions_pass(dtype: type, bound: float) -> None:
    checks = region_checks(chain(3, dtype))
    assert [(c.what, c.region, c.bound, c.passed) for c in checks] == [(f"c{i}: body, CPU", f"c{i}", bound, True) for i in range(3)]
    assert all(c.relative > 0 for c in checks) or dtype is np.float32


def with_weights_off(region: LoweredRegion, error: float) -> LoweredRegion:
    first, *rest = region.packed
    values = (first.values * (1 + error)).astype(first.values.dtype)
    return replace(region, packed=(replace(first, values=values), *rest))


@pytest.mark.parametrize(("dtype", "error", "passed"), [
    (np.float32, 5e-5, True),
    (np.float32, 2e-4, False),
    (np.float16, 2e-4, True),
    (np.float16, 5e-3, False),
])  # fmt: skip
def test_weights_that_are_off(dtype: type, error: float, passed: bool) -> None:
    (check,) = region_checks(chain(1, dtype), lambda region: with_weights_off(region, error))
    assert check.passed is passed


def test_a_wrong_body(plant: Callable[..., None]) -> None:
    plant("c1")
    assert [c.passed for c in region_checks(chain(3))] == [True, False, True]


def test_a_body_that_does_not_run(plant: Callable[..., None]) -> None:
    plant("c0", change=lambda body: body.node[0].input.append("nobody"))
    (check,) = region_checks(chain(1))
    assert not check.passed and check.problem.startswith("it does not run (") and check.region == "c0"


@bounds_of_kernels
def test_kernels_are_measured_by_the_errors_of_the_vendor(monkeypatch: pytest.MonkeyPatch, vendor: float, ours: float, bound: float, passed: bool) -> None:
    monkeypatch.setattr(submodels, "gpu_available", lambda: True)
    monkeypatch.setattr(submodels, "gpu_session", lambda model, kernels: Off(cpu_session(model), ours if kernels else vendor))
    body, kernel = region_checks(chain(1))
    assert body.passed and kernel.what == "c0: kernel, GPU"
    assert kernel.bound == pytest.approx(bound, rel=1e-3) and kernel.relative == pytest.approx(ours, rel=1e-2) and kernel.passed is passed


# ---- all of `optimize`


def test_a_wrong_body_is_dropped_and_named(tmp_path: Path, plant: Callable[..., None]) -> None:
    plant("c2")
    done = optimized(chain(), tmp_path)
    assert_dropped(done, "c2")
    assert refusals(done)["c2"].startswith("its results differ from the original's: body, CPU, relative error ") and "bound 1.0e-04" in refusals(done)["c2"]


def test_wrong_weights_are_dropped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lower_regions.pack

    def wrong(values: np.ndarray, layout: str, channels: int) -> np.ndarray:
        packed = right(values, layout, channels)
        return np.roll(packed, 1, axis=1) if values.shape[0] == 7 else packed  # the filters of c2, moved down by a row

    monkeypatch.setattr(lower_regions, "pack", wrong)
    assert_dropped(optimized(chain(), tmp_path), "c2")


def test_regions_with_the_same_wrong_body_go_together(tmp_path: Path, plant: Callable[..., None]) -> None:
    """The inner ones read and write channels last and share one body; the first and the last have one of their own."""
    plant(*(label(i) for i in range(1, LENGTH - 1)))
    assert_dropped(optimized(chain(twins=True), tmp_path), *(label(i) for i in range(1, LENGTH - 1)))


def test_a_wrong_kernel_is_dropped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu_session(model: Any, kernels: bool) -> Any:
        single = isinstance(model, ModelProto) and model.graph.name == "region"
        return Off(cpu_session(model), 0.1 if kernels and single and model.graph.output[0].name == "r3" else 0.0)

    for module in (submodels, verify):
        monkeypatch.setattr(module, "gpu_available", lambda: True)
        monkeypatch.setattr(module, "gpu_session", gpu_session)
    done = optimized(chain(), tmp_path)
    assert_dropped(done, "c3")
    assert "kernel, GPU, relative error 1.00e-01" in refusals(done)["c3"]
    assert any(c.what.startswith("kernels, GPU") for c in done.result.checks)


def test_a_fault_that_only_the_whole_model_shows_is_found_by_bisection(tmp_path: Path, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = []
    rewrite = pipeline._rewrite
    monkeypatch.setattr(pipeline, "_rewrite", lambda *args, **options: rewritten.append(options.get("only")) or rewrite(*args, **options))
    monkeypatch.setattr(pipeline, "check_region", lambda *_: [])
    plant("c4")
    done = optimized(chain(), tmp_path)
    assert_dropped(done, "c4")
    assert "function bodies, CPU: y, relative error" in refusals(done)["c4"]
    tries = [set(only) for only in rewritten if only is not None]
    assert tries[-1] == {"c4"} and len(tries) <= 5, "about log2 of the regions, and the proof"


def test_a_fault_that_needs_two_regions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipeline.verify

    def verify_(truth: Any, canonical: Any, path: Path, *rest: Any) -> list[Check]:
        checks = right(truth, canonical, path, *rest)
        made = {n.name.removeprefix("FusedConvRegion_") for n in onnx.load(path).graph.node if n.domain}
        if {"c1", "c3"} <= made:
            checks[-1] = replace(checks[-1], relative=1.0)
        return checks

    monkeypatch.setattr(pipeline, "verify", verify_)
    assert_refused(chain(), tmp_path, "relative error 1.00e+00", "region 'c3' adds the last of it")


@pytest.mark.parametrize(("each", "left_out"), [(0.9e-4, 0), (1.1e-4, 2), (1.6e-4, LENGTH)])
def test_rounding_that_adds_up_leaves_the_last_regions_out(each: float, left_out: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipeline.verify

    def verify_(truth: Any, canonical: Any, path: Path, *rest: Any) -> list[Check]:
        checks = right(truth, canonical, path, *rest)
        made = sum(bool(n.domain) for n in onnx.load(path).graph.node)
        checks[-1] = replace(checks[-1], relative=each * math.sqrt(made / LENGTH), bound=1e-4)
        return checks

    monkeypatch.setattr(pipeline, "verify", verify_)
    if left_out == LENGTH:
        assert_refused(chain(), tmp_path, f"relative error {each:.2e}", f"region {label(2)!r} adds the last of it")
    else:
        assert_dropped(optimized(chain(), tmp_path), *(label(LENGTH - 1 - i) for i in range(left_out)))


def test_more_faults_than_attempts(tmp_path: Path, plant: Callable[..., None]) -> None:
    plant(*(label(i) for i in range(LENGTH)))
    assert pipeline.MAX_ATTEMPTS < LENGTH
    assert_refused(chain(), tmp_path, "regions kept failing verification (c0, c1, c2, c3)")


def test_as_many_faults_as_the_attempts_can_drop(tmp_path: Path, plant: Callable[..., None]) -> None:
    bad = [label(i) for i in range(pipeline.MAX_ATTEMPTS - 1)]
    plant(*bad)
    assert_dropped(optimized(chain(), tmp_path), *bad)


def test_a_bound_that_is_too_tight_for_anything(tmp_path: Path) -> None:
    """Float16 arithmetic does not keep it with or without regions: dropping them does not help."""
    assert_refused(chain(dtype=np.float16), tmp_path, "regions kept failing verification", max_error=1e-9)


def test_regions_of_a_model_that_does_not_load_are_checked_all_the_same(tmp_path: Path, plant: Callable[..., None]) -> None:
    model = chain()
    model.graph.node.add(op_type="Unknown", domain="com.example", input=["y"], output=["z"])
    model.graph.output[0].name = "z"
    model.opset_import.add(domain="com.example", version=1)
    plant("c5")
    done = optimized(model, tmp_path)
    assert set(refusals(done)) == {"c5"} and done.result.not_verified.startswith("the original does not load in ONNX Runtime")
    assert {c.region for c in done.result.checks} == {label(i) for i in range(LENGTH - 1)}


def test_what_was_there_survives_a_refusal(tmp_path: Path, plant: Callable[..., None]) -> None:
    plant(*(label(i) for i in range(LENGTH)))
    (tmp_path / "fast.onnx").write_bytes(b"an older result")
    with pytest.raises(VerificationError):
        optimized(chain(), tmp_path)
    assert (tmp_path / "fast.onnx").read_bytes() == b"an older result"


def test_random_outputs_do_not_fail_a_right_model(tmp_path: Path) -> None:
    model = parsed(
        """g (float[N,4,8,8] x) => (float[N,4,8,8] y, float[N,4,8,8] z) {
          y = Conv<pads=[1,1,1,1]>(x, w)
          z = local.noisy(y)
        }
        <domain: "local", opset_import: ["": 17]> noisy (a) => (b) { r = RandomNormalLike(a)  b = Add(a, r) }""",
        {"w": (4, 4, 3, 3)},
        domains=', "local": 1',
    )
    done = optimized(model, tmp_path)
    assert done.regions == 1 and done.result.checks[-1].what == "function bodies, CPU: y"


def test_half_arithmetic_between_casts_is_measured_as_such(tmp_path: Path) -> None:
    """Inputs, outputs and weights are no float16 initializers, but the convolutions compute in it."""
    model = chain(2, np.float16)
    for i, tensor in enumerate(model.graph.initializer):
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [f"w{i}"], value=tensor))
    del model.graph.initializer[:]
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT16))
    model.graph.input[0].name = "image"
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model.graph.node.append(onnx.helper.make_node("Cast", ["y"], ["out"], to=TensorProto.FLOAT))
    model.graph.output[0].name = "out"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    done = optimized(model, tmp_path)
    whole = done.result.checks[-1]
    assert done.regions == 2 and whole.what == "function bodies, CPU: out" and whole.bound == 1e-3
