"""Every case of ONNX's backend suite that ONNX Runtime runs, and the suite's nine networks: the same answers after `optimize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

from backend_suite import FOLDERS, LIGHT, Case, cases, light, old, raised, with_constants, with_weights
from end_to_end import answers, assert_right, assert_same, config, optimized
from tilewright.optimizer.errors import ModelError
from tilewright.optimizer.pipeline import optimize

KINDS = ("node", *FOLDERS)
HALF = 1e-3  # bound on the relative error where an output is float16
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # more than 200 MB with weights

# By versions of onnx and ONNX Runtime: the cases; those that ONNX Runtime runs; those of them whose original gives the suite's outputs. `parameters` are the
# node cases with all inputs but the first as constants.
COUNTS = {
    ("1.23.2", "1.31.1"): {
        "node": (1884, 1420, 1398),
        "simple": (23, 17, 17),
        "pytorch-converted": (82, 79, 79),
        "pytorch-operator": (35, 35, 35),
        "parameters": (1367, 1021, 1004),
    }
}
CHANGED = {  # at least: cases that come out rewritten, and custom nodes in them
    "node": (299, 39),
    "simple": (0, 0),
    "pytorch-converted": (30, 30),
    "pytorch-operator": (4, 2),
    "parameters": (255, 25),
}
NETWORK_NODES = {  # as the suite has them, and with weights, at least
    "bvlc_alexnet": (3, 8),
    "densenet121": (13, 246),
    "inception_v1": (26, 45),
    "inception_v2": (19, 55),
    "resnet50": (10, 56),
    "shufflenet": (30, 52),
    "squeezenet": (18, 22),
    "vgg19": (6, 21),
    "zfnet512": (4, 8),
}
every_network = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in LIGHT])


def check(case: Case, model: ModelProto, folder: Path) -> Counter[str]:
    """Puts ``model``, a form of ``case``, through `optimize`: where the original runs, what is written gives its answers on every data set, and the suite's."""
    taken, outputs = {i.name for i in model.graph.input}, [o.name for o in model.graph.output]
    feeds = [{i.name: v for i, v in zip(case.model.graph.input, inputs, strict=False) if i.name in taken} for inputs, _ in case.data_sets]
    try:
        before = [answers(model, f) for f in feeds]
    except Exception:  # ONNX Runtime raises many kinds
        optimized(model, folder)  # goes through all the same
        return Counter(cases=1)
    right = [is_near(expected, [b[o] for o in outputs], case) for b, (_, expected) in zip(before, case.data_sets, strict=True)]
    done = optimized(model, folder)
    counts = Counter(cases=1, run=1, expected=int(all(right)), nodes=done.regions)
    if done.after == done.before:
        assert done.path.read_bytes() == (folder / "model.onnx").read_bytes()
        return counts
    for fed, wanted, wanted_right, (_, expected) in zip(feeds, before, right, case.data_sets, strict=True):
        for library in (False, True) if done.regions else (False,):
            got = answers(done.path, fed, library)
            half = any(isinstance(v, np.ndarray) and v.dtype == np.float16 for v in wanted.values())
            assert_same(wanted, got, HALF if half else 1e-5)
            assert is_near(expected, [got[o] for o in outputs], case) or not wanted_right
    return counts + Counter(rewritten=1)


def is_near(expected: Any, got: Any, case: Case) -> bool:
    """Whether ``got`` is what the suite expects, by its own tolerances."""
    if isinstance(expected, list):
        return isinstance(got, list) and len(expected) == len(got) and all(is_near(a, b, case) for a, b in zip(expected, got, strict=True))
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fc":
        return np.array_equal(expected, got)
    return expected.shape == got.shape and np.allclose(got, expected, case.rtol, case.atol, equal_nan=True)


def check_all(name: str, forms: Iterable[tuple[Case, ModelProto]], folder: Path) -> None:
    total: Counter[str] = Counter()
    for case, model in forms:
        try:
            total += check(case, model, folder)
        except BaseException as error:
            error.add_note(f"backend suite, case {case.name}")
            raise
    counts = tuple(total[word] for word in ("cases", "run", "expected"))
    known = COUNTS.get((onnx.__version__, onnxruntime.__version__))
    if known is not None:
        assert counts == known[name]
    else:  # other versions have other cases
        assert all(count >= 0.8 * usual for count, usual in zip(counts, *(c[name] for c in COUNTS.values()), strict=True))
    assert total["rewritten"] >= CHANGED[name][0] and total["nodes"] >= CHANGED[name][1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_case(kind: str, tmp_path: Path) -> None:
    check_all(kind, ((case, raised(case.model)) for case in cases(kind)), tmp_path)


def test_constant_parameters(tmp_path: Path) -> None:
    """Node cases whose weights and parameters are initializers, as they are in real models."""

    def forms() -> Iterable[tuple[Case, ModelProto]]:
        for case in cases("node"):
            model = raised(case.model)
            if len(model.graph.input) > 1:
                yield case, with_constants(model, dict(zip([i.name for i in model.graph.input], case.data_sets[0][0], strict=False)))

    check_all("parameters", forms(), tmp_path)


def test_old_opsets_are_refused(tmp_path: Path) -> None:
    refused = 0
    for case in (c for kind in KINDS for c in cases(kind) if old(c.model)):
        onnx.save(case.model, tmp_path / "model.onnx")
        with pytest.raises(ModelError, match=r"opset \d is older than 7, the oldest that is supported"):
            optimize(tmp_path / "model.onnx", config(), tmp_path / "fast.onnx")
        refused += 1
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert refused == 115


# ---- networks


@every_network
def test_network(name: str, tmp_path: Path) -> None:
    """As the suite has it: weights that ConstantOfShape makes are not expanded, and the answer is the suite's."""
    case = light(name)
    done = optimized(case.model, tmp_path)
    assert done.regions >= NETWORK_NODES[name][0] and done.result.checks
    assert done.result.bytes_after < done.result.bytes_before + 1_000_000
    assert_right(done, case.feeds)
    (got,) = answers(done.path, case.feeds).values()
    np.testing.assert_allclose(got, case.expected, rtol=1e-3, atol=1e-7)


@every_network
def test_network_with_weights(name: str, tmp_path: Path) -> None:
    """With random weights in place of one number, so that a wrong layer shows; each weight is in the file once."""
    case = light(name)
    done = optimized(with_weights(case.model), tmp_path)
    assert done.regions >= NETWORK_NODES[name][1] and not {"Conv", "Sum"} & done.result.ops_after.keys() and done.result.checks
    assert done.result.bytes_after < done.result.bytes_before + 1_000_000
    (answer,) = answers(done.before, case.feeds).values()
    assert len(np.unique(answer)) > 800  # of 1,000 classes
    assert_right(done, case.feeds)
