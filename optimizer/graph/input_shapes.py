"""Shapes and ranges that the user gives for the model's inputs: parsed, checked against the model, and turned into what stages use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import ModelProto, ValueInfoProto

from ..errors import UsageError
from .input_dims import input_dims, is_name

ShapeMap = Mapping[str, tuple[int, ...]]
Range = tuple[int, int | None]

_ENTRY = re.compile(r"(?P<name>.+?):(?P<dims>\[[\d\s,x]*\]|\d+(?:\s*[x,]\s*\d+)*)\s*(?:,\s*|$)")
_DEFAULT_IMAGE, _DEFAULT_OTHER = 224, 128  # sizes that stand for open dims of inputs with and without two spatial dims


@dataclass(frozen=True)
class InputShapes:
    """What is asked of a model's inputs.

    Attributes:
        ranges: Least and greatest size of open dims, by symbol name as in :class:`~.shapes.Shapes`; only those that the user limited.
        least, usual, greatest: A size for every open dim, by symbol name: to tune for and to verify at. Without a limit the greatest is the usual one.
        dims: The inputs' dims, symbol names where they are open.
    """

    ranges: Mapping[str, Range]
    least: Mapping[str, int]
    usual: Mapping[str, int]
    greatest: Mapping[str, int]
    dims: Mapping[str, tuple[int | str, ...]]

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shape of every input for sizes of the symbols (``least``, ``usual``, ``greatest``, or others)."""
        return {name: tuple(d if isinstance(d, int) else sizes[d] for d in dims) for name, dims in self.dims.items()}


def parse_shapes(text: str, flag: str = "input shapes") -> dict[str, tuple[int, ...]]:
    """``NAME:1x3x224x224,NAME2:[8,128]`` as a mapping; nothing for an empty text. A name may contain colons: the last one before the numbers splits.

    Raises:
        UsageError: another form, or a name given twice; ``flag`` is named.
    """
    result: dict[str, tuple[int, ...]] = {}
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None:
            raise UsageError(f"{flag}: {text[position:]!r} is not of the form NAME:1x3x224x224")
        if entry["name"] in result:
            raise UsageError(f"{flag}: input {entry['name']!r} is given twice")
        result[entry["name"]] = tuple(int(d) for d in re.findall(r"\d+", entry["dims"]))
        position = entry.end()
    return result


def parse_dims(texts: Iterable[str], flag: str = "--dim") -> dict[str, Range]:
    """``N=1..64``, ``N=8`` and ``N=1..`` (no upper limit), the last ``=`` splitting, as ranges by name.

    Raises:
        UsageError: another form, an empty range, or a name given twice; ``flag`` is named.
    """
    result: dict[str, Range] = {}
    for text in texts:
        match = re.fullmatch(r"(.+)=(\d+)(\.\.(\d*))?", text.strip())
        if match is None:
            raise UsageError(f"{flag}: {text!r} is not of the form N=1..64 or N=8")
        name, low = match[1].strip(), int(match[2])
        high = low if match[3] is None else int(match[4]) if match[4] else None
        if high is not None and high < low:
            raise UsageError(f"{flag}: the range of {name!r} is empty ({low} is above {high})")
        if name in result:
            raise UsageError(f"{flag}: dim {name!r} is given twice")
        result[name] = (low, high)
    return result


def resolve(
    model: ModelProto,
    dims: Mapping[str, Range] | None = None,
    min_shapes: ShapeMap | None = None,
    opt_shapes: ShapeMap | None = None,
    max_shapes: ShapeMap | None = None,
) -> InputShapes:
    """Ranges and example sizes of the open dims of ``model``.

    A dim's range is what ``dims`` says of its name, else what ``min_shapes`` and ``max_shapes`` say; its usual size is from ``opt_shapes``, else
    1 for the first dim of an input and an image or sequence size for others, moved into the range.

    Raises:
        UsageError: an unknown input or dim, another rank, a number where the model has another, a named dim of two sizes, or min > opt > max.
    """
    declared = _plain_inputs(model)
    limits: dict[str, Range] = {}
    for name, limit in (dims or {}).items():
        if not any(name in shape for shape in declared.values()):
            raise UsageError(f"--dim: no input of the model has a dim {name!r}; open dims are {_open(declared) or 'none'}")
        limits[name] = limit
    low, usual, high = (_by_symbol(declared, shapes or {}, flag) for shapes, flag in _flags(min_shapes, opt_shapes, max_shapes))
    for symbol in dict.fromkeys([*low, *high]):
        if symbol not in limits:
            limits[symbol] = (low.get(symbol, 0), high.get(symbol))
    least: dict[str, int] = {}
    best: dict[str, int] = {}
    most: dict[str, int] = {}
    for shape in declared.values():
        for axis, dim in enumerate(shape):
            if isinstance(dim, int) or dim in best:
                continue
            bottom, top = limits.get(dim, (0, None))
            if dim in low and dim in high and low[dim] > high[dim]:
                raise UsageError(f"--min-shapes: dim {dim!r} is {low[dim]}, above the {high[dim]} of --max-shapes")
            for sizes, flag in ((low, "--min-shapes"), (usual, "--opt-shapes"), (high, "--max-shapes")):
                if dim in sizes and (sizes[dim] < bottom or (top is not None and sizes[dim] > top)):
                    raise UsageError(f"{flag}: dim {dim!r} is {sizes[dim]}, outside its range {bottom}..{'' if top is None else top}")
            default = max(bottom, 1 if axis == 0 else _DEFAULT_IMAGE if len(shape) >= 4 else _DEFAULT_OTHER)
            best[dim] = usual.get(dim, default if top is None else min(default, top))
            least[dim] = low.get(dim, min(max(bottom, 1), best[dim]))
            most[dim] = high.get(dim, best[dim] if top is None else top)
    return InputShapes(limits, least, best, most, declared)


def overwrite(model: ModelProto, shapes: ShapeMap) -> ModelProto:
    """A copy of ``model`` whose inputs have the given shapes. A named dim gets its size wherever inputs, outputs or value_info name it.

    Raises:
        UsageError: an unknown input, another rank, a number where the model has another, or a named dim of two sizes.
    """
    declared = _plain_inputs(model)
    sizes = _by_symbol(declared, shapes, "--overwrite-input-shape")
    result = ModelProto()
    result.CopyFrom(model)
    for value in result.graph.input:
        if value.name in shapes and value.name in declared:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
                dim.dim_value = size
    for value in [*result.graph.input, *result.graph.output, *result.graph.value_info]:
        _name_to_size(value, sizes)
    return result


def _name_to_size(value: ValueInfoProto, sizes: Mapping[str, int]) -> None:
    if value.type.WhichOneof("value") == "tensor_type":
        for dim in value.type.tensor_type.shape.dim:
            if is_name(dim.dim_param) and dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]


def _flags(low: ShapeMap | None, usual: ShapeMap | None, high: ShapeMap | None) -> list[tuple[ShapeMap | None, str]]:
    return [(low, "--min-shapes"), (usual, "--opt-shapes"), (high, "--max-shapes")]


def _plain_inputs(model: ModelProto) -> dict[str, tuple[int | str, ...]]:
    constant = {t.name for t in model.graph.initializer} if model.ir_version < 4 else set()
    return {name: dims for name, dims in input_dims(model).items() if dims is not None and name not in constant}


def _open(declared: Mapping[str, tuple[int | str, ...]]) -> str:
    return ", ".join(dict.fromkeys(repr(d) for shape in declared.values() for d in shape if isinstance(d, str)))


def _by_symbol(declared: Mapping[str, tuple[int | str, ...]], shapes: ShapeMap, flag: str) -> dict[str, int]:
    """Sizes of open dims, by symbol, that ``shapes`` gives."""
    result: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in declared:
            raise UsageError(f"{flag}: the model has no input {name!r} of known rank; its inputs are {', '.join(map(repr, declared)) or 'none'}")
        dims = declared[name]
        if len(shape) != len(dims):
            raise UsageError(f"{flag}: input {name!r} has {len(dims)} dims ({_text(dims)}), {len(shape)} were given ({_text(shape)})")
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(dim, int):
                if dim != size:
                    raise UsageError(f"{flag}: dim {axis} of input {name!r} is {dim} in the model, {size} was given")
            elif result.setdefault(dim, size) != size:
                raise UsageError(f"{flag}: dim {dim!r} is given as {result[dim]} and as {size}")
    return result


def _text(dims: Iterable[int | str]) -> str:
    return "x".join(map(str, dims)) or "a scalar"
