"""Shape rules of If, Loop and Scan. Facts of the tensors inside hold in every branch and every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs
from onnx import TensorProto

from ..dims import equal
from ..symbols import Dim
from .registry import UNKNOWN, Call, CannotInfer, Fact, Shape, join, rule

_MAX_ROUNDS = 4


@rule("If")
def if_(call: Call) -> list[Fact]:
    """What holds in both branches; the branch itself where the condition is known."""
    branches = [call.engine.graph(call.attr(name), ()) for name in ("then_branch", "else_branch")]
    condition = call.ints(0)
    if condition:
        return branches[0 if condition[0] else 1]
    return [join(a, b, call.engine.fresh) for a, b in zip(*branches, strict=True)]


def _declared(graph: gs.Graph, index: int) -> Shape | None:
    """Shape of the iteration number and the condition: ONNX Runtime makes it a scalar or one element, as the body declares it."""
    origin = getattr(graph, "origin", None)
    declared = origin.input[index].type.tensor_type if origin is not None and index < len(origin.input) else None
    rank = len(declared.shape.dim) if declared is not None and declared.HasField("shape") else -1
    return ((), (1,))[rank] if rank in (0, 1) else None


def _fixed_point(call: Call, body: gs.Graph, lead: Sequence[Fact], carried: list[Fact], rest: Sequence[Fact], first: int) -> tuple[list[Fact], list[Fact]]:
    """Facts of the carried tensors that the body keeps, and those of its outputs for them.

    Dims that change from one iteration to the next become symbols once and stay these: the body's answer for them is not compared.
    """
    engine = call.engine
    moving: list[set[int] | None] = [set() if c.shape is not None else None for c in carried]
    carried = [replace(c, value=None) for c in carried]
    for _ in range(_MAX_ROUNDS):
        outputs = engine.graph(body, [*lead, *carried, *rest])
        stable = True
        for i, fact in enumerate(carried):
            new = outputs[first + i]
            dims = moving[i]
            shape = fact.shape
            if shape is not None and dims is not None:
                if new.shape is None or len(new.shape) != len(shape):
                    shape, moving[i], stable = None, None, False
                else:
                    changed = {k for k, (a, b) in enumerate(zip(shape, new.shape, strict=True)) if not equal(a, b)} - dims
                    stable = stable and not changed
                    moving[i] = dims | changed
                    shape = tuple(engine.fresh() if k in changed else d for k, d in enumerate(shape))
            dtype = fact.dtype if new.dtype == fact.dtype or new.dtype is None else None
            stable = stable and dtype == fact.dtype
            carried[i] = Fact(shape, None, dtype)
        if stable:
            return carried, outputs
    unknown = [Fact(dtype=c.dtype) for c in carried]
    return unknown, engine.graph(body, [*lead, *unknown, *rest])


def _outside(call: Call, fact: Fact, mark: int) -> Fact:
    """``fact`` of a body tensor as seen after the loop: dims that belong to one iteration become unknown ones."""
    engine = call.engine
    if fact.shape is None:
        return replace(fact, value=None)
    return Fact(tuple(engine.fresh() if engine.is_newer(d, mark) else d for d in fact.shape), None, fact.dtype)


@rule("Loop")
def loop(call: Call) -> list[Fact]:
    """Carried tensors keep what every iteration keeps; scan outputs get a leading dim of unknown size.

    NOTE: a scan output of a loop that does not run once has whatever rank the runtime gives it; that case is left out.
    """
    body = call.attr("body")
    mark = call.engine.mark()
    count = len(call.node.inputs) - 2
    start = [call.fact(i) for i in range(2, len(call.node.inputs))]
    lead = [Fact(_declared(body, 0), dtype=TensorProto.INT64), Fact(_declared(body, 1), dtype=TensorProto.BOOL)]
    carried, outputs = _fixed_point(call, body, lead, start, (), 1)
    results = [_outside(call, f, mark) for f in carried]
    trips = call.engine.fresh()
    for element in outputs[1 + count :]:
        seen = _outside(call, element, mark)
        results.append(replace(seen, shape=None if seen.shape is None else (trips, *seen.shape)))
    return results


@rule("Scan")
def scan(call: Call) -> list[Fact]:
    """Carried tensors as in Loop; inputs are cut along their scan axis, outputs stacked along theirs. Opset 8's batched form is not followed."""
    body = call.attr("body")
    scans = int(call.attr("num_scan_inputs"))
    if call.opset < 9:
        call.engine.graph(body, [UNKNOWN] * len(body.inputs))
        raise CannotInfer("Scan of opset 8")
    mark = call.engine.mark()
    states = len(call.node.inputs) - scans
    in_axes = [int(a) for a in call.attr("scan_input_axes", [])] or [0] * scans
    length: Dim | None = None
    slices = []
    for i, axis in enumerate(in_axes):
        fact = call.fact(states + i)
        if fact.shape is None:
            slices.append(Fact(dtype=fact.dtype))
            continue
        place = call.axis(axis, len(fact.shape))
        length = fact.shape[place] if length is None or not isinstance(length, int) else length
        slices.append(Fact((*fact.shape[:place], *fact.shape[place + 1 :]), None, fact.dtype))
    carried, outputs = _fixed_point(call, body, (), [call.fact(i) for i in range(states)], slices, 0)
    results = [_outside(call, f, mark) for f in carried]
    steps = call.engine.fresh() if length is None else length
    out_axes = [int(a) for a in call.attr("scan_output_axes", [])] or [0] * (len(outputs) - states)
    for element, axis in zip(outputs[states:], out_axes, strict=True):
        seen = _outside(call, element, mark)
        if seen.shape is not None:
            place = call.axis(axis, len(seen.shape) + 1)
            seen = replace(seen, shape=(*seen.shape[:place], steps, *seen.shape[place:]))
        results.append(seen)
    return results
