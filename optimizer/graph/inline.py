"""Local functions that hold convolutions are inlined, so that the planner sees into them."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, inliner

ANCHORS = ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool")
LARGEST = 2**31 - 2**20


def inline_anchors(model: ModelProto, keep: str = "") -> tuple[ModelProto, list[str]]:
    """``model`` with every local function that reaches a convolution inlined, and their names; the same object where there is none.

    Functions of the domain ``keep`` stay. A model that does not fit one protobuf message is left as it is: the inliner cannot take it.
    """
    names = {(f.domain, f.name): f for f in model.functions}
    wanted = [key for key in names if key[0] != keep and _reaches(key, names, set())]
    if not wanted or sum(len(t.raw_data) for t in model.graph.initializer) > LARGEST:
        return model, []
    return inliner.inline_selected_functions(model, wanted), [f"{domain}::{name}" for domain, name in wanted]


def _reaches(key: tuple[str, str], functions: dict[tuple[str, str], FunctionProto], seen: set[tuple[str, str]]) -> bool:
    seen.add(key)
    for node in functions[key].node:
        if node.domain in ("", "ai.onnx") and node.op_type in ANCHORS:
            return True
        inner = (node.domain, node.op_type)
        if inner in functions and inner not in seen and _reaches(inner, functions, seen):
            return True
    return False
