"""Topological order of a graph's nodes, sub-graph reads counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_graphsurgeon as gs

from ..errors import ModelError
from .view import Node, Tensor, subgraphs


def toposort(graph: gs.Graph, on_cycle: Callable[[Sequence[Node]], Exception] | None = None) -> None:
    """Orders ``graph`` as :func:`ordered` says."""
    graph.nodes[:] = ordered(graph, on_cycle)


def ordered(graph: gs.Graph, on_cycle: Callable[[Sequence[Node]], Exception] | None = None) -> list[Node]:
    """The nodes of ``graph`` with producers first, in their present order where it may be kept; sub-graph reads count.

    Raises:
        ModelError: the graph has a cycle (or what ``on_cycle`` makes of the nodes on it).
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    made_by = {t: node for node in graph.nodes for t in node.outputs if t.name}
    needs = {node: {made_by[t] for t in reads(node) if t in made_by} - {node} for node in graph.nodes}
    order: list[Node] = []
    state: dict[Node, int] = {}
    for root in sorted(graph.nodes, key=position.__getitem__):
        stack = [root]
        while stack:
            node = stack[-1]
            if state.get(node) == 2:
                stack.pop()
                continue
            state[node] = 1
            pending = [n for n in sorted(needs[node], key=position.__getitem__) if state.get(n) != 2]
            if not pending:
                state[node] = 2
                order.append(node)
                stack.pop()
                continue
            if state.get(pending[0]) == 1:
                cycle = stack[stack.index(pending[0]) :]
                raise on_cycle(cycle) if on_cycle else ModelError(f"the graph has a cycle through node {cycle[0].label!r}")
            stack.append(pending[0])
    return order


def reads(node: Node) -> Iterator[Tensor]:
    """The tensors that ``node`` reads, those of its sub-graphs among them."""
    yield from node.inputs
    for graph in subgraphs(node):
        for inner in graph.nodes:
            yield from reads(inner)
        yield from graph.outputs
