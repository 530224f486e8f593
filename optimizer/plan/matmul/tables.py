"""Measured times of micro-kernels: files ``kernels_ptx/tables/<device>.json`` that ``tools/tune`` writes, and what stands in where there is none.

A file holds one table for each driver, version of the kernels and compute type::

    {"device": "NVIDIA H200", "tables": [{"driver": "580", "version": "0.1.0", "compute": "f16", "launch_us": 2.3, "kernels":
        {"<tile's name>": {"start_us": 0.7, "step_us": 0.5, "tile_us": 0.5, "reduce_us": [1.5, 2.6, 3.0], "fixup_us": 2.7}}}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .... import kernels_ptx
from ...errors import ModelError
from ...target import DeviceSpec
from .analytic import analytic_pool
from .pool import MicroKernel, Pool, Tile, Times

FOLDER = Path(kernels_ptx.__file__).parent / "tables"


@dataclass(frozen=True)
class TableKey:
    """What a table was measured with; ``device`` is the name in ``targets.toml``, ``driver`` its major version."""

    device: str
    driver: str
    version: str
    compute: str


@dataclass(frozen=True)
class PoolWithNote:
    """A pool and one line for ``-v`` that says where its times are from."""

    pool: Pool
    note: str


def pool_for(device: DeviceSpec, tiles: Sequence[Tile], key: TableKey, folder: Path = FOLDER) -> PoolWithNote:
    """``tiles`` with measured times where a table for ``key`` names them all, else with analytic ones.

    Raises:
        ModelError: the file is there and malformed; the text names it.
    """
    analytic = analytic_pool(device, tiles, key.compute)
    path = folder / f"{key.device}.json"
    table, reason = _find(path, device, key)
    if table is not None:
        missing = [kernel.tile.name for kernel in analytic.kernels if kernel.tile.name not in table["kernels"]]
        if not missing:
            kernels = tuple(MicroKernel(k.tile, _times(path, k.tile.name, table["kernels"][k.tile.name])) for k in analytic.kernels)
            launch_us = _number(path, "launch_us", table["launch_us"])
            measured = replace(analytic, device=replace(analytic.device, launch_us=launch_us), kernels=kernels)
            return PoolWithNote(measured, f"matmul times: measured on {device.name}, driver {key.driver}")
        reason = f"its table lacks {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    return PoolWithNote(analytic, f"matmul times: analytic model of {device.name} ({reason})")


def _find(path: Path, device: DeviceSpec, key: TableKey) -> tuple[Mapping[str, Any] | None, str]:
    """The table for ``key``, or why there is none."""
    if not path.is_file():
        return None, "nothing was measured for it"
    try:
        content = json.loads(path.read_text())
        if content["device"] != device.name:
            return None, f"{path.name} is of {content['device']}"
        for table in content["tables"]:
            if (table["driver"], table["version"], table["compute"]) == (key.driver, key.version, key.compute):
                if not isinstance(table["kernels"], dict) or "launch_us" not in table:
                    raise KeyError("launch_us")
                return table, ""
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not a table of measured times: {type(error).__name__} {error}") from error
    return None, f"{path.name} has no table for driver {key.driver}, version {key.version}, {key.compute}"


def _times(path: Path, name: str, entry: Mapping[str, Any]) -> Times:
    """One kernel's times."""
    if not isinstance(entry, dict) or set(entry) != {field.name for field in fields(Times)}:
        raise ModelError(f"{path}: kernel {name} has {', '.join(map(str, entry)) or 'nothing'}; {', '.join(f.name for f in fields(Times))} are expected")
    reduce = entry["reduce_us"]
    if not isinstance(reduce, list) or len(reduce) != 3:
        raise ModelError(f"{path}: reduce_us of kernel {name} is not a list of three times")
    two, four, eight = (_number(path, "reduce_us", us) for us in reduce)
    start, step, tile, fixup = (_number(path, key, entry[key]) for key in ("start_us", "step_us", "tile_us", "fixup_us"))
    return Times(start, step, tile, (two, four, eight), fixup)


def _number(path: Path, what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
        raise ModelError(f"{path}: {what} is {value!r}, not a time in microseconds")
    return float(value)
