"""Custom nodes that hand tensors to one another become one node, so that ONNX Runtime steps in once and what lies between them needs no allocation.

A chain is convex: nodes are numbered by how often a path from the inputs leaves custom nodes and enters them again, and only nodes of one number
and one kind are joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs
from onnx import FunctionProto, helper

from ..graph.shapes import Shapes
from ..graph.toposort import reads, toposort
from ..graph.view import Constant, Node, Tensor, View, insert_before, producer, remove_node
from ..launch import LaunchExprError, LaunchPlan, parse
from ..lower.merge import Part, merge
from .nodes import DOMAIN, Emission, EmittedNode, free_names, kind_of


def join_chains(view: View, shapes: Shapes, emission: Emission, op_suffix: str) -> Emission:
    """Joins the custom nodes that ``emission`` put into ``view``; its nodes stay as they are for verification, its functions are those that are left."""
    emitted = {e.node: e for e in emission.nodes}
    joined: list[tuple[list[Node], Node, FunctionProto, bytes]] = []
    all_names = free_names(view, op_suffix)
    bodies: dict[str, set[bytes]] = {kind: set() for kind in all_names}
    own = Counter(kind_of(e.lowered) for e in {e.op: e for e in emission.nodes}.values())
    for graph in view.graphs():
        before = len(joined)
        for chain in [c for c in _chains(graph, emitted) if len(c) > 1]:
            kind = kind_of(emitted[chain[0]].lowered)
            made = _join(view, graph, [emitted[n] for n in chain], shapes, bodies[kind], len(all_names[kind]) - own[kind])
            joined += [(chain, *made)] if made is not None else []
        if len(joined) > before:
            toposort(graph)
    ops = {e.node: e.op for e in emission.nodes}
    alone = set(ops) - {n for chain, *_ in joined for n in chain}
    left = {ops[n] for n in alone}
    functions = {f.name: f for f in emission.functions if f.name in left}
    names: dict[bytes, str] = {}
    free = {kind: iter([n for n in known if n not in functions]) for kind, known in all_names.items()}
    for chain, node, body, key in joined:
        if key not in names:
            names[key] = body.name = next(free[kind_of(emitted[chain[0]].lowered)])
            functions[body.name] = body
        node.op = names[key]
        ops.update(dict.fromkeys(chain, node.op))
    return replace(emission, functions=tuple(functions.values()), ops=tuple(ops[e.node] for e in emission.nodes))


def _chains(graph: gs.Graph, emitted: Mapping[Node, EmittedNode]) -> Iterator[list[Node]]:
    """Groups of nodes of ``graph`` that may be joined, each in the graph's order."""
    number: dict[Node, int] = {}
    groups: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        kind = kind_of(emitted[node].lowered) if node in emitted else ""
        makers = [m for t in reads(node) if (m := producer(t)) in number]
        same = {m for m in makers if m in emitted and kind_of(emitted[m].lowered) == kind}
        number[node] = max((number[m] + (m in emitted and m not in same) for m in makers), default=0)
        if not kind:
            continue
        own = [node]
        for group in {id(g): g for m in same if number[m] == number[node] for g in [groups[m]]}.values():
            own = [*group, *own]
        groups.update(dict.fromkeys(own, own))
    order = {n: i for i, n in enumerate(graph.nodes)}
    for group in {id(g): g for g in groups.values()}.values():
        yield sorted(group, key=order.__getitem__)


def _join(view: View, graph: gs.Graph, chain: Sequence[EmittedNode], shapes: Shapes, bodies: set[bytes], room: int) -> tuple[Node, FunctionProto, bytes] | None:
    """The node that does what ``chain`` does, in its place in ``graph``, its body, and the bytes of that, which join ``bodies``.

    None where the merged plan is beyond the plans' limits, or the body would be one more than the ``room`` op names.
    """
    nodes = [e.node for e in chain]
    members = set(nodes)
    read = {t for n in graph.nodes if n not in members for t in reads(n)}.union(graph.outputs)
    made = {t for n in nodes for t in n.outputs}
    inputs = list(dict.fromkeys(t for n in nodes for t in n.inputs if t not in made))
    outputs = [t for n in nodes for t in n.outputs if t in read]
    known = {t: _known(t, shapes) for t in inputs}
    plans: dict[str, str] = {}
    for suffix in chain[0].plans:
        plan = merge([Part(e.plans[suffix], tuple(e.node.inputs), tuple(e.node.outputs)) for e in chain], inputs, outputs, known)
        if not _within_limits(plan):
            return None
        plans[f"plan_{suffix}"] = plan.to_text()
    images = {k: v for n in nodes for k, v in n.attrs.items() if k.startswith("image_")}
    body = _body(chain, inputs, outputs)
    key = body.SerializeToString(deterministic=True)
    if key not in bodies and len(bodies) >= room:
        return None
    bodies.add(key)
    node = Node(nodes[0].op, inputs, (), {**plans, **images}, view.fresh(f"{nodes[0].name}_to_{nodes[-1].name}"), DOMAIN, rule="chain")
    insert_before(graph, nodes[-1], [node])
    for old in nodes:
        remove_node(graph, old)
    node.outputs = outputs
    return node, body, key


def _known(tensor: Tensor, shapes: Shapes) -> tuple[int | None, ...]:
    shape = tensor.shape if isinstance(tensor, Constant) else shapes.shape(tensor)
    return tuple(d if isinstance(d, int) and d > 0 else None for d in shape) if shape is not None else ()


def _within_limits(plan: LaunchPlan) -> bool:
    expressions = {e for o in plan.outputs for e in o.dims} | set(plan.scratch)
    expressions |= {e for launch in plan.launches for e in (*launch.grid, launch.smem, launch.when, *(a.offset for a in launch.args))}
    try:
        for one in expressions:
            parse(str(one))
    except LaunchExprError:
        return False
    return True


def _body(chain: Sequence[EmittedNode], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> FunctionProto:
    """The bodies of ``chain`` one after another."""
    names: dict[Tensor, str] = {t: f"x{i}" for i, t in enumerate(inputs)} | {t: f"y{i}" for i, t in enumerate(outputs)}
    copies = []
    for number, part in enumerate(chain):
        own = {"": ""}
        for tensor, name in zip((*part.node.inputs, *part.node.outputs), (*part.function.input, *part.function.output), strict=True):
            own[name] = names.setdefault(tensor, f"v{len(names)}")
        for node in part.function.node:
            copy = type(node)()
            copy.CopyFrom(node)
            copy.input[:] = [own[n] for n in node.input]
            copy.output[:] = [own.setdefault(n, f"n{number}_{n}") for n in node.output]
            copies.append(copy)
    opsets = [helper.make_opsetid(o.domain, o.version) for o in chain[0].function.opset_import]
    return helper.make_function(DOMAIN, "", [names[t] for t in inputs], [names[t] for t in outputs], copies, opsets)
