"""The path of a model, one line a stage: load, infer, canonicalize, infer, precision, plan, lower, compile, emit, verify, report."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from .config import OptimizeConfig
from .emit.chains import join_chains
from .emit.export import export_model, graph_changed
from .emit.nodes import DOMAIN, DOMAIN_VERSION, Emission, TooManyBodies, emit_nodes
from .emit.save import StagedOutput, check_output, stage_model, stage_unchanged, staged
from .errors import VerificationError
from .graph.canonicalize import CanonicalizeReport, canonicalize
from .graph.check import check_model
from .graph.inline import inline_anchors
from .graph.input_shapes import InputShapes, overwrite, resolve
from .graph.load import LoadedModel, load
from .graph.precision import correct_types, to_half
from .graph.shapes import infer
from .graph.transformers import FUSIONS, fuse_attention, fuse_pointwise, may_attend, pointwise
from .graph.view import View
from .jit.build import Image, build
from .lower.lowered import LoweredRegion
from .lower.plan import lower_plan
from .plan.model_cost import merging_pays, nodes_us
from .plan.regions.plan import RULES, plan_regions
from .plan.regions.price import Pricing
from .plan.sizes import Sizes
from .records import Refusal
from .result import Check, Result
from .run import Attempt, Canonical, Report, Rewritten, Run, result_of, total_bytes, unchanged_result
from .target import DeviceSpec, TargetClass, device_for
from .verify.bisect import bisect
from .verify.submodels import check_region
from .verify.verify import CANONICALIZED, CannotCompare, Reference, check_loads, reference, verify

COLLECT_BYTES = 1 << 24  # models above it are large enough for their views to be collected after each stage
ROUNDING_EXCESS = 1.5  # an error of the whole model up to this multiple of its bound is rounding that adds up, where every region is within its own
MAX_ATTEMPTS = 4  # emissions, while sites that fail to compile or to verify are dropped


def optimize(source: str | Path | ModelProto, config: OptimizeConfig | None = None, output: str | Path | None = None, progress: Report | None = None) -> Result:
    """Rewrites ``source`` and writes it to ``output``, verified, or writes nothing.

    Args:
        source: Path of an ONNX model, or a model, which is not changed.
        config: What is asked for; the defaults where None.
        output: Where the result goes; None (or ``config.dry_run``) plans only.
        progress: Called with the name of each stage as it begins.

    Raises:
        ModelError: the model or the file system is at fault.
        UsageError: the request contradicts the model, or the output is the input.
        VerificationError: the result does not give the original's answers.
    """
    run = Run(config or OptimizeConfig(), progress or (lambda _: None))
    with run.stage("load"):
        loaded = load(source)
        run.large = total_bytes(loaded) > COLLECT_BYTES
        path = None if output is None or run.config.dry_run else Path(output)
        if path is not None:
            check_output(path, loaded)
        check_model(loaded.proto, loaded.label, loaded.path)
        if run.config.overwrite_input_shapes:
            loaded = replace(loaded, proto=overwrite(loaded.proto, run.config.overwrite_input_shapes))
        inputs = resolve(loaded.proto, run.config.dims, run.config.min_shapes, run.config.opt_shapes, run.config.max_shapes)
    if not run.config.passes and not _must_write(run.config):
        return _write_unchanged(run, loaded, path)
    try:
        return _optimize(run, loaded, inputs, path)
    except VerificationError as cause:
        if not any(a.rule in FUSIONS for a in run.applied):
            raise
        run.config = replace(run.config, passes=tuple(p for p in run.config.passes if p != "transformers"))
        run.refusals = [Refusal("transformers", f"ONNX Runtime's fused ops give other results ({cause})")]
        return _optimize(run, loaded, inputs, path)


def _optimize(run: Run, loaded: LoadedModel, inputs: InputShapes, path: Path | None) -> Result:
    device = device_for(run.config.targets)
    attempt = Attempt(run, loaded, inputs, device, _canonicalize(run, loaded, inputs, device))
    if path is None:
        return result_of(attempt, _rewrite_all(attempt, compile_images=False), (), [], "", 0)
    truth: Reference | CannotCompare | None = None
    for _ in range(MAX_ATTEMPTS):
        rewritten = _rewrite_all(attempt)
        if rewritten is None and not attempt.canonical.changed and not _must_write(run.config):
            return _write_unchanged(run, loaded, path)
        if truth is None:
            with run.stage("verify"):
                truth = _reference(run, loaded)
        with staged(path) as output:
            checks = _stage_and_check(attempt, rewritten, truth, output)
            faulty = _faulty(attempt, rewritten, truth, checks, path)
            if not faulty:
                size = output.nbytes
                return result_of(attempt, rewritten, tuple(output.commit()), checks, str(truth) if isinstance(truth, CannotCompare) else "", size)
        attempt.excluded.update(dict.fromkeys(faulty, _reason(checks, faulty[0])))
    raise VerificationError(f"{loaded.label}: regions kept failing verification ({', '.join(attempt.excluded)}); nothing was written")


def _must_write(config: OptimizeConfig) -> bool:
    """Whether the file changes although nothing in its graph does."""
    return bool(config.overwrite_input_shapes) or config.save_as_external_data


def _reason(checks: Sequence[Check], label: str) -> str:
    worst = next((c for c in checks if not c.passed and c.region in ("", label)), None)
    figures = f": {worst.what.removeprefix(f'{label}: ')}, {worst.problem or f'relative error {worst.relative:.2e}, bound {worst.bound:.1e}'}" if worst else ""
    return f"its results differ from the original's{figures}"


def _canonicalize(run: Run, loaded: LoadedModel, inputs: InputShapes, device: DeviceSpec, inline: bool = True) -> Canonical:
    """Stages infer, canonicalize, transformers and precision; without ``inline`` local functions stay as they are."""
    config = run.config
    proto, inlined = inline_anchors(loaded.proto, keep=DOMAIN) if inline and config.planners else (loaded.proto, [])
    run.notes = [f"local functions inlined: {', '.join(inlined)}"] if inlined else []
    run.applied, run.refusals = [], [r for r in run.refusals if r.rule in (*RULES, "transformers")]
    view = View(proto, loaded.base_dir, config.freeze_initializers)
    with run.stage("infer shapes"):
        shapes = infer(view, inputs.ranges)
    if "canonicalize" in config.passes:
        with run.stage("canonicalize"):
            report: CanonicalizeReport = canonicalize(view, shapes, lambda: infer(view, inputs.ranges))
            run.applied += report.applied
            run.refusals += report.refused
    fused = _fuse_attention(run, view, inputs, device)
    half = False
    if config.precision == "fp16" and config.planners:
        with run.stage("precision"):
            shapes = infer(view, inputs.ranges)
            changed = to_half(view, shapes, keep_io_types=config.keep_io_types)
            run.refusals += changed.refused
            half = bool(changed.converted)
    if graph_changed(view.graph):
        proto = export_model(view)
        correct_types(view, proto)
    return Canonical(proto, proto is not loaded.proto, half, tuple(inlined), fused)


def _fuse_attention(run: Run, view: View, inputs: InputShapes, device: DeviceSpec) -> tuple[float, float] | None:
    """Stage transformers before regions are planned; what the nodes are expected to take before and after it, None where it did nothing."""
    if "transformers" not in run.config.passes or not may_attend(view):
        return None
    with run.stage("transformers"):
        shapes = infer(view, inputs.ranges)
        sizes = Sizes(shapes, inputs.usual)
        before = nodes_us(device, view, shapes, sizes, ())
        report = fuse_attention(view, shapes, lambda: infer(view, inputs.ranges), lambda *args: merging_pays(device, shapes, sizes, *args))
        run.applied += report.applied
        run.refusals += report.refused
        if not report.applied:
            return None
        shapes = infer(view, inputs.ranges)
        return before, nodes_us(device, view, shapes, Sizes(shapes, inputs.usual), ())


def _fuse_pointwise(attempt: Attempt, proto: ModelProto) -> ModelProto:
    """Stage transformers after regions are made: what they left of a model whose attention is fused."""
    run = attempt.run
    if attempt.canonical.attention_us is None:
        return proto
    with run.stage("transformers"):
        view = View(proto, attempt.loaded.base_dir, run.config.freeze_initializers)
        report = fuse_pointwise(view, lambda: infer(view, attempt.inputs.ranges))
        names = {rule.name for rule in pointwise.rules}
        run.applied = [a for a in run.applied if a.rule not in names] + list(report.applied)
        run.refusals = [r for r in run.refusals if r.rule not in names] + list(report.refused)
        return export_model(view) if report.applied else proto


def _rewrite_all(attempt: Attempt, compile_images: bool = True) -> Rewritten | None:
    """:func:`_rewrite` with every region that pays; where there is none, local functions that were inlined for regions are whole again."""
    rewritten = _rewrite(attempt, compile_images)
    if rewritten is None and attempt.canonical.inlined:
        attempt.canonical = _canonicalize(attempt.run, attempt.loaded, attempt.inputs, attempt.device, inline=False)
    if rewritten is None:
        attempt.canonical = replace(attempt.canonical, proto=_fuse_pointwise(attempt, attempt.canonical.proto))
    return rewritten


def _rewrite(attempt: Attempt, compile_images: bool = True, only: Set[str] | None = None) -> Rewritten | None:
    """Stages plan, lower, compile and emit; None where no region was made. With ``only``, no other regions than those are made."""
    run, config = attempt.run, attempt.run.config
    if not config.planners:
        return None
    while True:
        view = View(attempt.canonical.proto, attempt.loaded.base_dir, config.freeze_initializers)
        with run.stage("infer shapes"):
            shapes = infer(view, attempt.inputs.ranges)
        with run.stage("plan"):
            sizes = Sizes(shapes, attempt.inputs.usual)
            pricing = Pricing(attempt.device, sizes)
            plan = plan_regions(view, shapes, config.precision, pricing, attempt.excluded, only, config.take_all, config.planners)
            rest = nodes_us(attempt.device, view, shapes, sizes, (n for p in plan.regions for n in p.region.nodes))
        if only is None:
            run.refusals = [r for r in run.refusals if r.rule not in RULES]
            run.refusals += plan.refusals
        if not plan.regions:
            return None
        with run.stage("lower"):
            lowered = lower_plan(plan, pricing)
        if not compile_images:
            return Rewritten(attempt.canonical.proto, Emission((), (), ()), plan, shapes, rest)
        try:
            with run.stage("compile"):
                images = _compile(run, lowered)
            with run.stage("emit"):
                suffix = _op_suffix(config.targets)
                emission = emit_nodes(view, lowered, images, suffix)
                if "chain" in config.passes:
                    emission = join_chains(view, shapes, emission, suffix)
                proto = export_model(view, emission.functions, [(DOMAIN, DOMAIN_VERSION)])
        except TooManyBodies as cause:
            attempt.excluded.update((region.region.label, str(cause)) for region in cause.left_over)
            continue
        except _SpecFailed as failure:
            reason = f"its kernel does not compile ({failure.reason})"
            attempt.excluded.update((region.region.label, reason) for region in lowered if failure.spec in region.specs)
            continue
        return Rewritten(_fuse_pointwise(attempt, proto), emission, plan, shapes, rest)


class _SpecFailed(Exception):
    def __init__(self, spec: str, reason: str) -> None:
        super().__init__(spec)
        self.spec, self.reason = spec, reason


def _compile(run: Run, lowered: list[LoweredRegion]) -> dict[str, dict[str, Image]]:
    """Every kernel for every target class that carries it: the portable templates serve all of them."""
    specs = {name: spec for region in lowered for name, spec in region.specs.items()}
    images: dict[str, dict[str, Image]] = {}
    for target in _image_classes(run.config.targets):
        result = build(specs, target, run.config.cache_dir, lambda done, total: run.report(f"compile {done}/{total} kernels"))
        failed = next(iter(result.failures.items()), None)
        if failed is not None:
            raise _SpecFailed(failed[0], str(failed[1]).splitlines()[0])
        images[target.op_suffix] = result.images
    return images


def _image_classes(targets: tuple[TargetClass, ...]) -> tuple[TargetClass, ...]:
    """Classes to compile for: portable alone where it is asked for, since every template so far is a portable one."""
    portable = tuple(t for t in targets if t.name == "portable")
    return portable or targets


def _op_suffix(targets: tuple[TargetClass, ...]) -> str:
    return _image_classes(targets)[0].op_suffix


def _reference(run: Run, loaded: LoadedModel) -> Reference | CannotCompare:
    if not run.config.verify:
        return CannotCompare("--no-verify was given")
    try:
        view = View(loaded.proto, loaded.base_dir, run.config.freeze_initializers)
        return reference(loaded, view, infer(view), run.config)
    except CannotCompare as reason:
        return reason


def _stage_and_check(attempt: Attempt, rewritten: Rewritten | None, truth: Reference | CannotCompare, output: StagedOutput) -> list[Check]:
    """Puts the model on disk and compares it there: every distinct region by itself, then the whole."""
    run, canonical = attempt.run, attempt.canonical
    with run.stage("write"):
        proto = rewritten.proto if rewritten is not None else canonical.proto
        if proto is canonical.proto and run.config.save_as_external_data:
            proto = ModelProto()
            proto.CopyFrom(canonical.proto)  # staging takes the weights out
        stage_model(proto, attempt.loaded, output, run.config.save_as_external_data)
    if not run.config.verify:
        return []
    with run.stage("verify"):
        checks: list[Check] = []
        for node, shapes in [(n, rewritten.shapes) for n in rewritten.emission.nodes] if rewritten is not None else []:
            if node.first_of_body:
                checks += check_region(node, shapes)
                if not all(c.passed for c in checks):
                    return checks
        if isinstance(truth, CannotCompare):
            return [*checks, check_loads(output.model)] if truth.loads else checks
        return checks + verify(truth, canonical.proto if canonical.changed or rewritten is not None else None, output.model, run.config, canonical.half)


def _faulty(attempt: Attempt, rewritten: Rewritten | None, truth: Reference | CannotCompare, checks: list[Check], path: Path) -> list[str]:
    """Labels of the regions to leave out: the one at fault and those that share its body, or as many as rounding errors ask for; none where all passed.

    Raises:
        VerificationError: the fault lies in no region, or a comparison was demanded and is not possible.
    """
    if isinstance(truth, CannotCompare) and attempt.run.config.require_verify:
        raise VerificationError(f"nothing can be compared: {truth}; nothing was written")
    failed = [c for c in checks if not c.passed]
    if not failed:
        return []
    by_label = {node.lowered.region.label: node for node in rewritten.emission.nodes} if rewritten is not None else {}
    if failed[0].what.startswith(CANONICALIZED):
        by_label = {}  # no region is at fault
    if failed[0].region in by_label:
        return [label for label, node in by_label.items() if node.op == by_label[failed[0].region].op]

    left_out = _accumulated(failed, list(by_label))
    if left_out:
        return left_out

    def fails(active: Set[str]) -> bool:
        part = _rewrite(attempt, only=active)
        if part is None:
            return False
        with staged(path) as output:
            return not all(c.passed for c in _stage_and_check(attempt, part, truth, output))

    with attempt.run.stage("bisect"):
        label = bisect(list(by_label), fails)
    if label is None or not fails({label}):
        text = "; ".join(f"{c.what}: {c.problem or f'relative error {c.relative:.2e}, bound {c.bound:.1e}'}" for c in failed)
        where = f" (region {label!r} adds the last of it)" if label else ""
        raise VerificationError(f"the rewritten model differs from the original: {text}{where}; nothing was written")
    return [label]


def _accumulated(failed: Sequence[Check], labels: Sequence[str]) -> list[str]:
    """The last of the regions, where each is within its bound and only the sum of their rounding is not: so many that equal, independent errors would fit.

    The last ones, because the others stay connected. None where the excess is more than rounding.
    """
    if any(c.region or c.problem or c.relative > ROUNDING_EXCESS * c.bound for c in failed):
        return []
    surplus = max(1 - (c.bound / c.relative) ** 2 for c in failed)
    return list(labels[len(labels) - min(len(labels), math.ceil(surplus * len(labels))) :])


def _write_unchanged(run: Run, loaded: LoadedModel, path: Path | None) -> Result:
    files: list[Path] = []
    size = 0
    if path is not None:
        with run.stage("write"), staged(path) as output:
            stage_unchanged(loaded, output)
            size = output.nbytes
            files = output.commit()
    return unchanged_result(run, loaded, files, size)
