"""The ``optimize`` command: arguments to an :class:`OptimizeConfig`, the result to a table, errors to one sentence and an exit code."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tilewright import __version__

from .config import DEFAULT_TARGETS, PASSES, PRECISIONS, OptimizeConfig
from .errors import TilewrightError, UsageError
from .graph.input_shapes import parse_dims, parse_shapes
from .pipeline import optimize
from .report import print_result, write_html, write_json
from .target import parse_targets

EXIT_USAGE, EXIT_INTERNAL = 2, 4
ISSUES = "https://github.com/tilewright/tilewright/issues"
COMMANDS = ("inspect",)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (optimize --help lists what there is)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="optimize",
        description="Rewrites an ONNX model so that its convolution regions run as fused CUDA kernels in ONNX Runtime.",
        epilog="Exit codes: 0 written, 1 the model or the file system, 2 usage, 3 verification failed, 4 internal error.",
    )
    parser.add_argument("model", help="an .onnx file, or zoo:NAME for a model of the zoo (zoo:list names them)")
    parser.add_argument("-o", "--output", type=Path, help="where the rewritten model goes; never the input")
    parser.add_argument(
        "--target", default=DEFAULT_TARGETS, metavar="T[,T]", help=f"image classes: portable, sm_80 ... sm_120a, native (default {DEFAULT_TARGETS})"
    )
    for flag, what in (("min", "smallest"), ("opt", "usual"), ("max", "largest")):
        parser.add_argument(
            f"--{flag}-shapes",
            f"--{flag}Shapes",
            default="",
            metavar="NAME:1x3x224x224,...",
            help=f"{what} input shapes; they guide choices and freeze nothing",
        )
    parser.add_argument("--dim", action="append", default=[], metavar="N=1..64", help="range of a named dim; may be repeated")
    parser.add_argument("--overwrite-input-shape", default="", metavar="NAME:1x3x224x224,...", help="freeze input shapes in the output")
    parser.add_argument(
        "--precision", default="match", metavar="|".join(PRECISIONS), help="arithmetic of the rewritten regions (default match: what ONNX Runtime would use)"
    )
    parser.add_argument("--keep-io-types", action=argparse.BooleanOptionalAction, default=True, help="keep float32 inputs and outputs at --precision fp16")
    parser.add_argument("--freeze-initializers", action="store_true", help="take initializers that are also inputs for constants")
    parser.add_argument("--passes", default=",".join(PASSES), metavar="P[,P]", help=f"any of {', '.join(PASSES)}, or none")
    parser.add_argument("--max-error", type=float, metavar="E", help="bound on the relative error of each output, instead of the documented ones")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="inputs to verify on instead of random ones")
    parser.add_argument("--no-verify", action="store_true", help="write without comparing")
    parser.add_argument("--require-verify", action="store_true", help="fail where nothing can be compared")
    parser.add_argument("--dry-run", action="store_true", help="plan only: nothing is compiled or written")
    parser.add_argument("--explain", action="store_true", help="print every region, and why everything else was left alone")
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write the report as HTML")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="write the report as JSON")
    parser.add_argument("--save-as-external-data", action="store_true", help="put the weights in <output>.data")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="folder of compiled kernels")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("-v", "--verbose", action="store_true", help="print comparisons, times and tracebacks")
    parser.add_argument("--version", action="version", version=f"tilewright {__version__}")
    return parser


def _config(args: argparse.Namespace) -> OptimizeConfig:
    passes = () if args.passes == "none" else tuple(p for p in args.passes.split(",") if p)
    config = OptimizeConfig(
        targets=parse_targets(args.target, _native_arch() if "native" in args.target else None),
        precision=args.precision,
        passes=passes,
        keep_io_types=args.keep_io_types,
        min_shapes=parse_shapes(args.min_shapes, "--min-shapes"),
        opt_shapes=parse_shapes(args.opt_shapes, "--opt-shapes"),
        max_shapes=parse_shapes(args.max_shapes, "--max-shapes"),
        dims=parse_dims(args.dim),
        overwrite_input_shapes=parse_shapes(args.overwrite_input_shape, "--overwrite-input-shape"),
        freeze_initializers=args.freeze_initializers,
        verify=not args.no_verify,
        require_verify=args.require_verify,
        max_error=args.max_error,
        inputs=args.inputs,
        save_as_external_data=args.save_as_external_data,
        dry_run=args.dry_run,
    )
    return replace(config, cache_dir=args.cache_dir) if args.cache_dir else config


def _native_arch() -> str | None:
    from tilewright import custom_ops

    try:
        capabilities = sorted(d["capability"] for d in custom_ops.status().get("devices", []))
    except custom_ops.OpLibraryError as cause:
        raise UsageError(f"--target native: no GPU can be asked for ({cause})") from cause
    return f"sm_{capabilities[0][0]}{capabilities[0][1]}" if capabilities else None


def _source(name: str, args: argparse.Namespace) -> Any:
    if not name.startswith("zoo:") or Path(name).exists():
        return name
    from tilewright import model_zoo

    model = name.removeprefix("zoo:")
    if model not in model_zoo.names():
        raise UsageError(f"the zoo has no model {model!r}; it has {', '.join(model_zoo.names())}")
    return model_zoo.build(model)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` (the process's arguments by default) and returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    verbose = "-v" in argv or "--verbose" in argv
    try:
        if argv and argv[0] in COMMANDS and not Path(argv[0]).is_file():
            return _command(argv[0], argv[1:])
        return _optimize(argv)
    except TilewrightError as error:
        if verbose:
            traceback.print_exc()
        errors.print(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        errors.print("interrupted; nothing was written")
        return 130
    except Exception as error:
        traceback.print_exc()
        errors.print(f"internal error: {type(error).__name__}: {error}; nothing was written. Please report it with the text above at {ISSUES}")
        return EXIT_INTERNAL


def _command(name: str, argv: Sequence[str]) -> int:
    from .inspect import main as inspect_main

    return {"inspect": inspect_main}[name](argv)


def _optimize(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    if args.output is None and not args.dry_run:
        raise UsageError("-o OUT.onnx is required: a model is never rewritten in place")
    config = _config(args)
    source = _source(args.model, args)
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True, disable=args.quiet or not console.is_terminal
    ) as progress:
        task = progress.add_task("loading")
        result = optimize(source, config, args.output, progress=lambda text: progress.update(task, description=text))
    if args.json:
        write_json(result, args.json)
    if args.report:
        write_html(result, args.report)
    if not args.quiet:
        print_result(result, Console(highlight=False), explain=args.explain, verbose=args.verbose)
    return 0
