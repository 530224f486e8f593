"""Launch plans of nodes that hand tensors to one another become one plan: what lies between them is scratch memory that later launches use again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..launch import Arg, Expr, Launch, LaunchPlan, Output, arg_in, arg_out, arg_scratch, const, dim, function, maximum

BYTES = {"f16": 2, "f32": 4}
MAX_SIZES = 8  # different sizes, known at run time only, that share a slot
NOMINAL_DIM = 32  # for a dim that is not known, where slots are compared
MAX_RANK = 16
Tensor = Hashable
Dims = tuple[Expr, ...]


@dataclass(frozen=True)
class Part:
    """One node: its plan and the tensors that its inputs and outputs are."""

    plan: LaunchPlan
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass
class _Slot:
    """One slot: by what is only known at run time, the largest multiple of it that it must hold; dims are not negative."""

    multiples: dict[Expr, int] = field(default_factory=dict)
    nominal: int = 0
    free_from: int = 0  # the first part that may use it for something else

    def takes(self, size: Expr) -> bool:
        return _multiple(size)[0] in self.multiples or len(self.multiples) < MAX_SIZES

    def hold(self, size: Expr) -> None:
        base, factor = _multiple(size)
        self.multiples[base] = max(factor, self.multiples.get(base, 0))

    @property
    def size(self) -> Expr:
        total = const(0)
        for base, factor in self.multiples.items():
            total = base * factor if total == const(0) else maximum(total, base * factor)
        return total


def _multiple(size: Expr) -> tuple[Expr, int]:
    if size.op == "const":
        return const(1), size.value
    return (size.args[0], size.args[1].value) if size.op == "*" and size.args[1].op == "const" else (size, 1)


@dataclass
class _Merge:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    known: Mapping[Tensor, Sequence[int | None]]
    last_use: dict[Tensor, int]
    dims: dict[Tensor, Dims] = field(default_factory=dict)
    places: dict[Tensor, Arg] = field(default_factory=dict)
    slots: list[_Slot] = field(default_factory=list)
    images: dict[str, int] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nominal: list[list[int]] = []
        for i, tensor in enumerate(self.inputs):
            known = [*self.known.get(tensor, ()), *[None] * MAX_RANK][:MAX_RANK]
            self.nominal.append([n or NOMINAL_DIM for n in known])
            self.dims[tensor] = tuple(const(n) if n is not None else dim(i, axis) for axis, n in enumerate(known))
            self.places[tensor] = arg_in(i)
        self.places.update({tensor: arg_out(i) for i, tensor in enumerate(self.outputs)})

    def slot(self, size: Expr, part: int, last: int) -> int:
        """A slot of ``size`` bytes from ``part`` to ``last``: the free one that fits best, or a new one."""
        need = size.evaluate(self.nominal)
        free = [i for i, s in enumerate(self.slots) if s.free_from <= part and s.takes(size)]
        best = min(free, key=lambda i: (self.slots[i].nominal < need, abs(self.slots[i].nominal - need)), default=len(self.slots))
        if best == len(self.slots):
            self.slots.append(_Slot())
        slot = self.slots[best]
        slot.hold(size)
        slot.nominal = max(slot.nominal, need)
        slot.free_from = last + 1
        return best

    def add(self, number: int, part: Part) -> None:
        def moved(expr: Expr) -> Expr:
            if expr.op == "dim":
                return self.dims[part.inputs[expr.value]][expr.axis]
            return function(expr.op, *map(moved, expr.args)) if expr.args else expr

        scratch = [self.slot(moved(size), number, number) for size in part.plan.scratch]
        for tensor, output in zip(part.outputs, part.plan.outputs, strict=True):
            self.dims[tensor] = tuple(map(moved, output.dims))
            if tensor not in self.places:
                elements = const(1)
                for size in self.dims[tensor]:
                    elements = elements * size
                nbytes = elements * BYTES[output.dtype]
                self.places[tensor] = arg_scratch(self.slot(nbytes, number, self.last_use[tensor]))

        def argument(arg: Arg) -> Arg:
            if arg.kind in ("in", "out"):
                place = self.places[(part.inputs if arg.kind == "in" else part.outputs)[arg.index]]
                return replace(place, offset=moved(arg.offset))
            return replace(arg, index=scratch[arg.index], offset=moved(arg.offset)) if arg.kind == "ws" else replace(arg, offset=moved(arg.offset))

        for launch in part.plan.launches:
            image = self.images.setdefault(part.plan.images[launch.image], len(self.images))
            x, y, z = map(moved, launch.grid)
            args = tuple(map(argument, launch.args))
            self.launches.append(Launch(image, launch.kernel, (x, y, z), launch.block, moved(launch.smem), args, moved(launch.when), launch.pdl))


def merge(parts: Sequence[Part], inputs: Sequence[Tensor], outputs: Sequence[Tensor], known: Mapping[Tensor, Sequence[int | None]]) -> LaunchPlan:
    """One plan that does what ``parts`` do one after another.

    Args:
        parts: In an order in which tensors are made before they are read.
        inputs, outputs: Tensors of the whole; what else the parts make is scratch.
        known: Dims of inputs that hold whatever the model is fed, None for those that do not; what is computed from them becomes a constant.
    """
    last_use = {t: i for i, part in enumerate(parts) for t in (*part.outputs, *part.inputs)}
    work = _Merge(tuple(inputs), tuple(outputs), known, last_use)
    for number, part in enumerate(parts):
        work.add(number, part)
    dtypes = {t: o.dtype for part in parts for t, o in zip(part.outputs, part.plan.outputs, strict=True)}
    results = tuple(Output(dtypes[t], work.dims[t]) for t in outputs)
    return LaunchPlan(results, tuple(s.size for s in work.slots), tuple(work.images), tuple(work.launches))
