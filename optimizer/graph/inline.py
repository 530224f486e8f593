"""Local functions that hold convolutions or matrix products are inlined, so that the planner sees into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, inliner

ANCHORS = ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "MatMul", "Gemm")
LARGEST = 2**31 - 2**20


def inline_anchors(model: ModelProto, keep: str = "") -> tuple[ModelProto, list[str]]:
    """``model`` with every local function that reaches one inlined, and their names; the same object where there is none.

    Functions of the domain ``keep`` and those that were written for another opset than the model's stay. A model that does not fit one protobuf
    message is left as it is: the inliner cannot take it.
    """
    names = {(f.domain, f.name): f for f in model.functions}
    opsets = {i.domain: i.version for i in model.opset_import}
    strangers = {key for key, f in names.items() if any(opsets.get(i.domain, i.version) != i.version for i in f.opset_import)}
    wanted = [key for key in names if key[0] != keep and key not in strangers and any(_is_anchor(n) for n in reached(key, names))]
    if not wanted or sum(len(t.raw_data) for t in model.graph.initializer) > LARGEST:
        return model, []
    kept = strangers | {(n.domain, n.op_type) for key in strangers for n in reached(key, names)}
    return _inline(model, wanted, kept), [f"{domain}::{name}" for domain, name in wanted]


def _inline(model: ModelProto, wanted: list[tuple[str, str]], kept: set[tuple[str, str]]) -> ModelProto:
    """``model`` without calls of ``wanted``; ``kept`` are the functions that another opset was written for, and those that they call."""
    if not kept:
        return inliner.inline_selected_functions(model, wanted)
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.functions[:]
    # NOTE: the inliner refuses a model with a function of another opset, called or not; it leaves ops alone that it does not know.
    copy.functions.extend(f for f in model.functions if (f.domain, f.name) not in kept or (f.domain, f.name) in wanted)
    inlined = inliner.inline_selected_functions(copy, wanted)
    inlined.functions.extend(f for f in model.functions if (f.domain, f.name) in kept)
    return inlined


def _is_anchor(node: NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in ANCHORS


def reached(key: tuple[str, str], functions: Mapping[tuple[str, str], FunctionProto]) -> Iterator[NodeProto]:
    """The nodes of a function, of their sub-graphs, and of the functions that they call."""
    pending: list[FunctionProto | GraphProto] = [functions[key]]
    seen = {key}
    while pending:
        for node in pending.pop().node:
            yield node
            pending += [g for a in node.attribute for g in (a.g, *a.graphs)]
            inner = (node.domain, node.op_type)
            if inner in functions and inner not in seen:
                seen.add(inner)
                pending.append(functions[inner])
