"""The declared dims of a model's inputs: numbers, and names for those that are open."""

from __future__ import annotations

from onnx import ModelProto

_NO_NAMES = frozenset({"", "?", "*", "None", "none", "null", "unk", "unknown"})  # dim_params that name nothing


def is_name(dim_param: str) -> bool:
    """Whether a dim_param names a dim: exporters also write ``?`` or ``-1`` for 'any'."""
    text = dim_param.strip()
    return text not in _NO_NAMES and not text.lstrip("-").isdigit()


def input_dims(model: ModelProto) -> dict[str, tuple[int | str, ...] | None]:
    """The dims of every input that is a plain tensor (None: of unknown rank).

    A dim is its size, or the name of the symbol that shapes use for it: its dim_param, shared by all inputs that have it, else
    ``<input>_<axis>``. A declared size that is not above 0 counts as open.
    """
    plain = [i for i in model.graph.input if i.type.WhichOneof("value") == "tensor_type"]
    taken = {d.dim_param for i in plain for d in i.type.tensor_type.shape.dim if is_name(d.dim_param)}
    result: dict[str, tuple[int | str, ...] | None] = {}
    for value in plain:
        if not value.type.tensor_type.HasField("shape"):
            result[value.name] = None
            continue
        dims: list[int | str] = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                dims.append(dim.dim_value)
            else:
                dims.append(dim.dim_param if is_name(dim.dim_param) else _unique(f"{value.name}_{axis}", taken))
        result[value.name] = tuple(dims)
    return result


def _unique(base: str, taken: set[str]) -> str:
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name
