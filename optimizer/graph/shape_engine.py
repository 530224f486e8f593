"""The walk over the graph that applies the shape rules; :mod:`.shapes` holds its public face and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx_graphsurgeon as gs
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto, helper

from ..errors import ModelError
from ..records import Refusal
from .dims import never_one
from .input_dims import input_dims
from .protos import function_body
from .shape_rules import RULES, UNKNOWN, Call, CannotInfer, Fact
from .shape_rules.elementwise import is_float
from .shape_rules.fallback import infer_by_onnx
from .shape_rules.registry import MAX_UNKNOWN, MAX_VALUES, Values, array
from .shape_rules.signatures import signature
from .symbols import MAX_TERMS, Dim, is_whole, number, size_symbol, symbols_of, terms, value_symbol
from .toposort import toposort
from .view import Constant, Node, Tensor, View, Weights, import_graph, is_constant, producer

_MAX_FLOATS = 64  # float constants up to this many elements are read (Resize scales)
_MAX_DEPTH = 16  # nested calls of local functions


class Inference:
    """One run of shape inference over ``view``; :attr:`facts` grows as it goes. Implements the engine that rules see.

    Attributes:
        facts: What is known of each tensor that is no constant.
        problems: Rules that failed on a node in a way they did not foresee; the node's outputs are unknown then.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.facts: dict[Tensor, Fact] = {}
        self.problems: list[Refusal] = []
        self.input_symbols: list[str] = []
        self._opsets = _opsets(view.model)
        self._functions: dict[tuple[str, str], FunctionProto] = {(f.domain, f.name): f for f in view.model.functions}
        self._sparse = {s.values.name: Fact(tuple(s.dims), None, s.values.data_type) for g in view.graphs() for s in _origin(g).sparse_initializer}
        self._read: dict[Tensor, Values | None] = {}
        self._made: dict[Dim, int] = {}
        self._pairs: dict[frozenset[Dim], Dim] = {}
        self._names: set[str] = set()
        self._depth = 0

    def run(self) -> None:
        """Infers the main graph and, through it, every sub-graph."""
        declared = {i.name: i.type for i in self.view.model.graph.input}
        dims = input_dims(self.view.model)
        free = [d for t in self.view.graph.inputs if not isinstance(t, Constant) for d in dims.get(t.name) or () if isinstance(d, str)]
        self.input_symbols = list(dict.fromkeys(free))
        self._names |= set(free)
        self.graph(self.view.graph, [self._input(t, declared.get(t.name, TypeProto()), dims.get(t.name)) for t in self.view.graph.inputs])

    def _input(self, tensor: Tensor, kind: TypeProto, dims: tuple[int | str, ...] | None) -> Fact:
        """The declared type of a model input. A dtype that a rewrite set on the tensor itself replaces the declared one."""
        if isinstance(tensor, Constant):
            return self.fact(tensor)
        if kind.WhichOneof("value") != "tensor_type":
            return UNKNOWN
        dtype = kind.tensor_type.elem_type or None
        if tensor.dtype is not None:
            dtype = int(helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)))
        return Fact(None if dims is None else tuple(size_symbol(d) if isinstance(d, str) else d for d in dims), None, dtype)

    def graph(self, graph: gs.Graph, inputs: Sequence[Fact]) -> list[Fact]:
        """Infers ``graph``, whose inputs have the facts ``inputs``; returns the facts of its outputs."""
        for tensor, fact in zip(graph.inputs, inputs, strict=False):
            if not isinstance(tensor, Constant):
                self.facts[tensor] = fact
        for node in _in_order(graph):
            self._node(node)
        return [replace(self.fact(t), value=self.value(t)) for t in graph.outputs]

    def _node(self, node: Node) -> None:
        call = Call(node, self)
        facts: Sequence[Fact] = ()
        try:
            facts = self._apply(call)
        except CannotInfer:
            pass
        except Exception as cause:  # an invalid node must not stop the walk; what failed is kept
            self.problems.append(Refusal("shapes", f"{node.op}: {type(cause).__name__}: {cause}", (node.label,)))
        domain = "" if node.standard() else node.domain
        found = signature(domain, node.op, self.opset(domain)) if (domain, node.op) not in self._functions else None
        dtypes = found.dtypes([call.dtype(i) for i in range(len(node.inputs))], len(node.outputs)) if found else [None] * len(node.outputs)
        for i, tensor in enumerate(node.outputs):
            if tensor.name:
                fact = facts[i] if i < len(facts) else UNKNOWN
                self.facts[tensor] = self._checked(fact, dtypes[i] if fact.dtype is None else fact.dtype)

    def _apply(self, call: Call) -> Sequence[Fact]:
        node = call.node
        domain = "" if node.standard() else node.domain
        if (domain, node.op) in self._functions:
            return self._local_function(call, self._functions[domain, node.op])
        rule = RULES.get((domain, node.op))
        return rule(call) if rule is not None else infer_by_onnx(call, domain)

    def _local_function(self, call: Call, function: FunctionProto) -> list[Fact]:
        """Infers the body with the facts of the caller's inputs; what the body's tensors are is forgotten afterwards."""
        if self._depth >= _MAX_DEPTH:
            raise CannotInfer("local functions are nested too deep")
        body = import_graph(function_body(function, call.node))
        given = [replace(call.fact(i), value=call.value(i)) for i in range(len(body.inputs))]
        saved = self.facts, self._opsets
        self.facts, self._opsets, self._depth = {}, _opsets(function), self._depth + 1
        try:
            return self.graph(body, given)
        finally:
            (self.facts, self._opsets), self._depth = saved, self._depth - 1

    def _checked(self, fact: Fact, dtype: int | None) -> Fact:
        """``fact`` without what cannot be: negative sizes, sizes that are no integers, expressions that grew out of hand."""
        shape = fact.shape
        if shape is not None:
            if any(isinstance(d, int) and d < 0 for d in shape):
                return Fact(dtype=dtype)
            if not all(isinstance(d, int) for d in shape):
                shape = tuple(d if isinstance(d, int) or (is_whole(d) and len(terms(d)) <= MAX_TERMS) else self.fresh() for d in shape)
        value = fact.value
        if value is not None and (value.size > MAX_VALUES or dtype is None or shape is None or value.shape != shape):
            value = None
        return Fact(shape, value, dtype)

    def fact(self, tensor: Tensor) -> Fact:
        """What is known of ``tensor``; contents of constants only through :meth:`value`."""
        if isinstance(tensor, Constant):
            return Fact(tuple(tensor.shape), None, dtype_of(tensor))
        if tensor not in self.facts and tensor.name in self._sparse and not tensor.inputs:
            self.facts[tensor] = self._sparse[tensor.name]
        return self.facts.get(tensor, UNKNOWN)

    def value(self, tensor: Tensor) -> Values | None:
        """Known contents of ``tensor``; a small constant is read on first use."""
        fact = self.facts.get(tensor)
        if fact is not None and fact.value is not None:
            return fact.value
        if not self.is_constant(tensor):
            return None
        if tensor not in self._read:
            self._read[tensor] = constant_contents(tensor)
        return self._read[tensor]

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is an initializer or made by a Constant node."""
        return is_constant(tensor)

    def value_or_symbols(self, tensor: Tensor) -> Values | None:
        """As :meth:`value`; unknown contents of a small integer tensor become symbols, the same ones each time."""
        value, fact = self.value(tensor), self.fact(tensor)
        if value is not None or fact.shape is None or fact.dtype not in (TensorProto.INT64, TensorProto.INT32):
            return value
        sizes = [d for d in fact.shape if isinstance(d, int)]
        count = int(np.prod(sizes)) if len(sizes) == len(fact.shape) else MAX_UNKNOWN + 1
        if count > MAX_UNKNOWN:
            return None
        value = array([self.fresh(f"{tensor.name}_{i}", size=False) for i in range(count)], sizes)
        self.facts[tensor] = replace(fact, value=value)
        return value

    def opset(self, domain: str) -> int:
        """Version of ``domain`` that the model, or the local function being inferred, imports."""
        return self._opsets.get(domain, 1)

    def fresh(self, hint: str = "", size: bool = True) -> Dim:
        """A new symbol, ``_u<n>`` unless a name is wished for."""
        name = self._unique(hint or f"_u{len(self._made)}")
        symbol = size_symbol(name) if size else value_symbol(name)
        self._made[symbol] = len(self._made) + 1
        return symbol

    def mark(self) -> int:
        """A point in the sequence of fresh symbols."""
        return len(self._made)

    def is_newer(self, dim: Dim, mark: int) -> bool:
        """Whether ``dim`` has a symbol made after ``mark``."""
        return any(self._made.get(s, 0) > mark for s in symbols_of(dim))

    def broadcast_dim(self, a: Dim, b: Dim) -> Dim:
        """The size of broadcast dims, neither of them the number 1. Two that may differ or be 1 give a symbol, always the same."""
        if a == b or never_one(a):
            return a
        if never_one(b):
            return b
        pair = frozenset((a, b))
        if pair not in self._pairs:
            both = self.fresh()
            for other in (pair, frozenset((a, both)), frozenset((b, both))):
                self._pairs[other] = both
        return self._pairs[pair]

    def _unique(self, base: str) -> str:
        name, count = base, 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name


def _in_order(graph: gs.Graph) -> Sequence[Node]:
    """The nodes so that producers come first; runtimes accept any order."""
    late = {t for node in graph.nodes for t in node.outputs if t.name}
    for node in graph.nodes:
        if any(t in late for t in node.inputs):
            break
        late.difference_update(node.outputs)
    else:
        return list(graph.nodes)
    ordered = SimpleNamespace(nodes=list(graph.nodes))
    try:
        toposort(ordered)
    except ModelError:
        return list(graph.nodes)
    return list(ordered.nodes)


def _origin(graph: gs.Graph) -> GraphProto:
    return getattr(graph, "origin", None) or GraphProto()


def _opsets(owner: ModelProto | FunctionProto) -> dict[str, int]:
    return {"" if i.domain == "ai.onnx" else i.domain: i.version for i in owner.opset_import}


def dtype_of(constant: Constant) -> int:
    """The dtype of a constant as a TensorProto enum."""
    values = constant._values
    if isinstance(values, Weights):
        return values.tensor.data_type
    return TensorProto.STRING if values.dtype.kind in "OUS" else int(helper.np_dtype_to_tensor_dtype(values.dtype))


def constant_contents(tensor: Tensor) -> Values | None:
    """The contents of a small constant as an object array of ints (fractions as rationals), or None. The tensor keeps its own form."""
    if isinstance(tensor, Constant):
        if tensor.dtype.kind not in "biufV" or int(np.prod(tensor.shape)) > MAX_VALUES:
            return None
        dtype = dtype_of(tensor)
        if int(np.prod(tensor.shape)) > _MAX_FLOATS and is_float(dtype):
            return None
        raw = tensor._values.load() if isinstance(tensor._values, Weights) else tensor._values
        if is_float(dtype):
            floats = [float(x) for x in raw.ravel()]
            return array([number(x) for x in floats], tensor.shape) if np.isfinite(floats).all() else None
        return array([int(x) for x in raw.ravel()], tensor.shape) if tensor.dtype.kind in "biu" else None
    maker = producer(tensor)
    attrs = maker.attrs if maker is not None else {}
    if isinstance(attrs.get("value"), Constant):
        return constant_contents(attrs["value"])
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if name in attrs:
            entries = list(np.ravel(attrs[name]))
            if len(entries) > MAX_VALUES or not np.isfinite(entries).all():
                return None
            return array([number(np.float32(x).item()) if "float" in name else int(x) for x in entries], () if name in ("value_int", "value_float") else None)
    return None
