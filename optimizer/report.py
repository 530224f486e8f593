"""The table that every run ends with, and the same as JSON and HTML."""

from __future__ import annotations

import html
import json
from collections import Counter
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from .errors import ModelError
from .records import Refusal
from .result import Result

TOP_REASONS = 5
TOP_OPS = 12


def print_result(result: Result, console: Console, explain: bool = False, verbose: bool = False) -> None:
    """The summary; with ``explain`` every refusal and region, with ``verbose`` the stages' times too."""
    console.print(summary_table(result))
    if explain:
        for region in result.regions:
            console.print(Text(f"{region.name} -> {region.op}\n{region.description}"))
        for refusal in result.refusals:
            console.print(Text(f"not rewritten: {refusal}"))
    if verbose:
        for check in result.checks:
            state = "ok" if check.passed else "FAILED"
            console.print(Text(f"{state} {check.what}: {check.problem or f'relative {check.relative:.2e}, max {check.max_abs:.2e}'} (bound {check.bound:.1e})"))
        console.print(Text("seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in result.seconds.items())))


def summary_table(result: Result) -> RenderableType:
    """The summary as a table of two columns."""
    table = Table(title=f"{result.source}" + (f" -> {result.files[0]}" if result.files else " (nothing written)"), show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in summary_rows(result):
        table.add_row(key, Text(value))
    return table


def summary_rows(result: Result) -> list[tuple[str, str]]:
    """The rows of the summary as text."""
    before, after = sum(result.ops_before.values()), sum(result.ops_after.values())
    rows = [("ops", f"{before} -> {after}"), ("op types", _ops_line(result))]
    kernels = sum(len(r.kernels) for r in result.regions)
    rows.append(("regions", f"{len(result.regions)} made" + (f", {kernels} kernel launches" if result.regions else "")))
    if result.applied:
        counts = Counter(a.rule for a in result.applied)
        rows.append(("canonicalized", ", ".join(f"{n} {rule}" for rule, n in counts.most_common())))
    rows.append(("not rewritten", "\n".join(f"{n} x {reason}" for reason, n in top_reasons(result.refusals)) or "nothing was refused"))
    rows.append(("size", f"{megabytes(result.bytes_before)} -> {megabytes(result.bytes_after)}" if result.files else megabytes(result.bytes_before)))
    rows.append(("verification", _verification_line(result)))
    if result.regions:
        rows.append(("expected", f"{result.expected_speedup:.2f}x on {result.device} (cost model, not measured)"))
    if len(result.files) > 1:
        rows.append(("also written", ", ".join(str(f) for f in result.files[1:])))
    rows += [("note", note) for note in result.notes]
    return rows


def top_reasons(refusals: tuple[Refusal, ...], count: int = TOP_REASONS) -> list[tuple[str, int]]:
    """The most frequent reasons, each with how often it was given."""
    return Counter(f"{r.rule}: {r.reason}" for r in refusals).most_common(count)


def megabytes(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"


def _ops_line(result: Result) -> str:
    changed = []
    for op in sorted({*result.ops_before, *result.ops_after}):
        old, new = result.ops_before.get(op, 0), result.ops_after.get(op, 0)
        if old != new:
            changed.append((abs(old - new), f"{op} {old} -> {new}"))
    changed.sort(key=lambda c: -c[0])
    text = ", ".join(c[1] for c in changed[:TOP_OPS])
    return (text + (f" and {len(changed) - TOP_OPS} more" if len(changed) > TOP_OPS else "")) or "unchanged"


def _verification_line(result: Result) -> str:
    if result.not_verified:
        return f"NOT VERIFIED: {result.not_verified}"
    if not result.checks:
        return "nothing changed, nothing to compare"
    worst = max(result.checks, key=lambda c: c.relative / c.bound if c.bound else c.relative)
    figures = f"relative {worst.relative:.1e}, max {worst.max_abs:.1e} (bound {worst.bound:.1e})"
    kernels = "" if any("GPU" in c.what for c in result.checks) or not result.regions else "; kernels were not run, there is no GPU here"
    return f"{len(result.checks)} comparisons passed{kernels}; closest to its bound: {worst.what}, {figures}"


def write_json(result: Result, path: Path) -> None:
    """Writes the whole record as JSON."""
    _write(path, json.dumps(result.to_dict(), indent=1, default=str) + "\n")


def write_html(result: Result, path: Path) -> None:
    """Writes one HTML page without outside references."""
    rows = "".join(f"<tr><th>{_cell(k)}</th><td>{_cell(v)}</td></tr>" for k, v in summary_rows(result))
    regions = "".join(
        f"<tr><td>{_cell(r.name)}</td><td>{_cell(r.op)}</td><td><pre>{_cell(r.description)}</pre></td><td>{r.ours_us:.1f}</td><td>{r.vendor_us:.1f}</td></tr>"
        for r in result.regions
    )
    refusals = "".join(f"<tr><td>{_cell(r.rule)}</td><td>{_cell(r.reason)}</td><td>{_cell(', '.join(r.nodes))}</td></tr>" for r in result.refusals)
    checks = "".join(f"<tr><td>{_cell(c.what)}</td><td>{c.relative:.2e}</td><td>{c.max_abs:.2e}</td><td>{c.bound:.1e}</td></tr>" for c in result.checks)
    page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Tilewright: {_cell(result.source)}</title>
<style>body{{font:14px sans-serif;margin:2em;max-width:90em}}table{{border-collapse:collapse;margin:1em 0}}td,th{{border:1px solid #ccc;padding:.3em .6em;
text-align:left;vertical-align:top}}pre{{margin:0;white-space:pre-wrap}}</style>
<h1>{_cell(result.source)}</h1><table>{rows}</table>
<h2>Regions</h2><table><tr><th>at</th><th>op</th><th>what</th><th>expected us</th><th>ONNX Runtime, expected us</th></tr>{regions}</table>
<h2>Not rewritten</h2><table><tr><th>rule</th><th>reason</th><th>nodes</th></tr>{refusals}</table>
<h2>Verification</h2><table><tr><th>what</th><th>relative</th><th>max</th><th>bound</th></tr>{checks}</table></html>
"""
    _write(path, page)


def _cell(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise ModelError(f"{path}: cannot be written ({cause.strerror or cause})") from cause
