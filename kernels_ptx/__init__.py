"""The CUDA templates: where they are, and what their headers say of parameters and arguments.

A template ``name`` is one header ``templates/<name>.cuh`` with one struct, its name in CamelCase. The header is the only place where
parameters and arguments are listed; this module reads them there.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent
_ARGS = re.compile(r"^  struct Args \{\n(.*?)^  \};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"(const void\*|void\*|int) (\w+);")


def include_dirs() -> tuple[Path, ...]:
    """Folders to give to the compiler, in order."""
    return (_ROOT / "include", _ROOT / "templates")


def template_names() -> tuple[str, ...]:
    """Every template, sorted."""
    return tuple(sorted(path.stem for path in (_ROOT / "templates").glob("*.cuh")))


def template_path(name: str) -> Path:
    """The header of template ``name``.

    Raises:
        KeyError: no such template.
    """
    path = _ROOT / "templates" / f"{name}.cuh"
    if not path.is_file():
        raise KeyError(f"no kernel template {name!r}; there are {', '.join(template_names())}")
    return path


def template_struct(name: str) -> str:
    """The C++ name of template ``name``: ``conv_igemm`` -> ``ConvIgemm``."""
    return "".join(word.capitalize() for word in name.split("_"))


@cache
def template_params(name: str) -> tuple[str, ...]:
    """Names of the template's parameters, in order."""
    text = template_path(name).read_text()
    match = re.search(r"^template <([^>]*)>\nstruct " + template_struct(name) + r" \{", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"{template_path(name)}: no template <...> before struct {template_struct(name)}")
    return tuple(parameter.split()[-1].rstrip("_") for parameter in match.group(1).split(","))


@cache
def template_args(name: str) -> tuple[tuple[str, str], ...]:
    """The kernel's arguments in order: name and kind, ``in`` (const pointer), ``out`` (pointer) or ``i32``."""
    match = _ARGS.search(template_path(name).read_text())
    if match is None:
        raise ValueError(f"{template_path(name)}: no struct Args")
    fields = []
    for line in filter(None, map(str.strip, match.group(1).splitlines())):
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ValueError(f"{template_path(name)}: {line!r} in struct Args is not one pointer or int")
        fields.append((field.group(2), {"const void*": "in", "void*": "out", "int": "i32"}[field.group(1)]))
    return tuple(fields)
