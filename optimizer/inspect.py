"""``optimize inspect MODEL``: what an optimized model carries, and with ``--runtime`` what runs of it on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from onnx import ModelProto
from rich.console import Console
from rich.table import Table

from .emit.nodes import DOMAIN
from .graph.load import load


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="optimize inspect", description="Lists the custom nodes of an optimized model.")
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("--runtime", action="store_true", help="say for each node whether its kernel or its body runs in a session here, and why")
    args = parser.parse_args(argv)
    proto = load(args.model).proto
    reason = _body_reason(proto) if args.runtime else None
    table = Table(title=f"{args.model}: {sum(n.domain == DOMAIN for n in proto.graph.node)} custom node(s)", title_justify="left")
    for column in ("node", "op", "targets", "launches", *(["runs as"] if args.runtime else [])):
        table.add_column(column, overflow="fold")
    for node in proto.graph.node:
        if node.domain != DOMAIN:
            continue
        plans = {a.name.removeprefix("plan_"): a.s.decode() for a in node.attribute if a.name.startswith("plan_")}
        launches = [line.split()[2] for line in next(iter(plans.values()), "").splitlines() if line.startswith("launch ")]
        row = [node.name, node.op_type, ", ".join(plans), "\n".join(launches)]
        table.add_row(*row, *([reason or "kernel"] if args.runtime else []))
    Console(highlight=False).print(table)
    return 0


def _body_reason(model: ModelProto) -> str:
    """Why the bodies run on this machine, or '' where the kernels do."""
    from tilewright import custom_ops

    try:
        status = custom_ops.status()
    except custom_ops.OpLibraryError as cause:
        return f"body: {cause}"
    if not custom_ops.supported():
        return f"body: {custom_ops.status().get('reason') or status.get('driver_problem') or 'the library registers nothing'}"
    classes = set(custom_ops.status().get("classes", []))
    carried = {n.op_type.split("_")[1] for n in model.graph.node if n.domain == DOMAIN}
    missing = carried - {c.replace("_", "") for c in classes}
    return f"body: no kernels for this GPU (the model carries {', '.join(sorted(carried))})" if missing else ""
