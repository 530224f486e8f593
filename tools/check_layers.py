#!/usr/bin/env python3
"""Holds the architecture: which folder may import which, who may read environment variables, how long a file may be.

Run in the checkout; prints each violation as `file:line: what` and ends with 1 where there is one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Each may import those before it, and itself.
LAYERS = (
    *("errors", "target", "records", "launch", "result", "config"),
    *("graph", "plan", "lower", "jit", "emit", "verify"),
    *("run", "pipeline", "report", "inspect", "cli", "__main__"),
)
PACKAGES = ("optimizer", "custom_ops", "kernels_ptx", "model_zoo")
MAY_IMPORT = {"optimizer": {"custom_ops", "kernels_ptx"}}  # of the other packages; cli imports model_zoo too, inside functions
READS_ENVIRONMENT = {"optimizer/config.py", "custom_ops/loader.py"}
MOST_LINES = 400
LONG = "long because"  # in the first line of a longer file, with the reason


def imports(tree: ast.Module, module: tuple[str, ...], is_package: bool) -> Iterator[tuple[int, tuple[str, ...], bool]]:
    """Line, imported module below ``tilewright`` (or with ``tests``, ``tools`` first), and whether it is imported inside a function."""
    lazy = {id(inner) for outer in ast.walk(tree) if isinstance(outer, ast.FunctionDef) for inner in ast.walk(outer)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = ("tilewright", *module[: len(module) - node.level + is_package], *base)
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] in ("tests", "tools") or (name[0] == "tilewright" and len(name) > 1 and name[1] in PACKAGES):
                yield node.lineno, name[name[0] == "tilewright" :], id(node) in lazy


def check_imports(path: str, tree: ast.Module) -> Iterator[str]:
    """Violations of the import direction in one file."""
    parts = Path(path).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = parts[:-1] if is_package else parts
    package = parts[0]
    for line, name, is_lazy in imports(tree, module, is_package):
        where = f"{path}:{line}: "
        if name[0] in ("tests", "tools"):
            yield f"{where}nothing imports {name[0]}"
        elif name[0] != package:
            allowed = name[0] in MAY_IMPORT.get(package, ()) or (name[0] == "model_zoo" and path == "optimizer/cli.py" and is_lazy)
            if not allowed:
                yield f"{where}{package} does not import {name[0]}" + (" (the command alone may, inside a function)" if name[0] == "model_zoo" else "")
        elif package == "optimizer" and len(module) > 1 and len(name) > 1:
            mine, theirs = module[1], name[1]
            for layer in {mine, theirs} - set(LAYERS):
                yield f"{where}{layer} has no place among the layers of tools/check_layers.py"
            if mine in LAYERS and theirs in LAYERS and LAYERS.index(theirs) > LAYERS.index(mine):
                yield f"{where}{mine} imports {theirs}, which comes after it"


def check_environment(path: str, tree: ast.Module) -> Iterator[str]:
    """Reads of environment variables outside the files that may."""
    if path in READS_ENVIRONMENT:
        return
    for node in ast.walk(tree):
        is_attribute = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and isinstance(node.value, ast.Name) and node.value.id == "os"
        is_import = isinstance(node, ast.ImportFrom) and node.module == "os" and any(alias.name in ("environ", "getenv") for alias in node.names)
        if is_attribute or is_import:
            yield f"{path}:{node.lineno}: reads an environment variable; only {' and '.join(sorted(READS_ENVIRONMENT))} do"


def check_length(path: str, text: str) -> Iterator[str]:
    """A file above MOST_LINES says in its first line why."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES and LONG not in lines[0]:
        yield f"{path}:1: {len(lines)} lines; above {MOST_LINES} the first line says '{LONG} ...'"


def violations(root: Path, files: list[str]) -> Iterator[str]:
    """Every violation in ``files``, paths relative to ``root``."""
    for path in files:
        text = (root / path).read_text()
        yield from check_length(path, text)
        if path.endswith(".py") and Path(path).parts[0] in PACKAGES:
            tree = ast.parse(text, path)
            yield from check_imports(path, tree)
            yield from check_environment(path, tree)


def main() -> int:
    """Checks the files of the checkout that git tracks or would track."""
    patterns = ["*.py", "*.cc", "*.h", "*.cu", "*.cuh"]
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    found = list(violations(ROOT, [path for path in sorted(set(listed.stdout.splitlines())) if (ROOT / path).is_file()]))
    print("\n".join(found) if found else "layers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
