"""Every node case of the ONNX backend suite that ONNX Runtime runs: what is inferred never contradicts what comes out."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from shape_oracle import Tally, compare, dynamic_inputs, frozen_parameters, session, with_all_outputs
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View

CASES_RUN = {("1.23.2", "1.31.1"): 1420}  # by onnx and ONNX Runtime version
NEWEST_IR = 10


def _run(model: onnx.ModelProto, inputs: list[object]) -> tuple[dict[str, object], dict[str, object]] | None:
    """Feeds and every tensor that comes out, or None where ONNX Runtime does not take the case."""
    model.ir_version = min(model.ir_version, NEWEST_IR)
    try:
        try:
            run = session(with_all_outputs(model))
        except Exception:  # some tensors cannot be outputs
            run = session(model)
        arrays = [numpy_helper.to_array(a) if isinstance(a, TensorProto) else np.asarray(a) if isinstance(a, np.generic) else a for a in inputs]
        feeds = dict(zip([i.name for i in run.get_inputs()], arrays, strict=False))
        return feeds, dict(zip([o.name for o in run.get_outputs()], run.run(None, feeds), strict=True))
    except Exception:
        return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_case_contradicts(record_property: pytest.FixtureRequest) -> None:
    """Declared input shapes; then every input dim open; then every dim open and small parameters constant."""
    tallies = {"declared": Tally(), "open": Tally(), "parameters": Tally()}
    cases = 0
    for case in load_model_tests(kind="node"):
        ran = _run(case.model, case.data_sets[0][0])
        if ran is None:
            infer(View(case.model))
            infer(View(dynamic_inputs(case.model)))
            continue
        cases += 1
        feeds, arrays = ran
        models = {"declared": case.model, "open": dynamic_inputs(case.model), "parameters": frozen_parameters(case.model, feeds)}
        for kind, model in models.items():
            view = View(model)
            shapes = infer(view)
            tally = compare(shapes, view, arrays, feeds)
            assert tally.wrong == [], (case.name, kind)
            assert shapes.problems == (), (case.name, kind)
            tallies[kind].add(tally)
    for kind, tally in tallies.items():
        record_property(kind, f"{tally.known_rank}/{tally.tensors} ranks, {tally.known_dims}/{tally.dims} dims, {tally.values} values")
    expected = CASES_RUN.get((onnx.__version__, onnxruntime.__version__))
    assert cases == expected if expected else cases > 1200
    assert tallies["declared"].known_dims > 0.97 * tallies["declared"].dims
    assert tallies["open"].known_dims > 0.89 * tallies["open"].dims
    assert tallies["parameters"].known_dims > 0.94 * tallies["parameters"].dims
