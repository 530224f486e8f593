"""Golden files: what is planned and launched for a dozen models, as short text that reads well in a diff; `tools/golden` writes them.

Nothing of it depends on the machine: plans are priced for an H200 from its data file, and weights do not enter. Times are left out, so that a
constant of the cost model shows only where it changes a choice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto

from corpus.case import parsed
from dynamic_models import cnn
from matmul_golden import NAME as MATMUL_PLANS
from matmul_golden import matmul_plans
from plan_harness import Planned, plan
from tilewright import model_zoo
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.graph.canonicalize import canonicalize
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.transformers import fuse_attention, may_attend
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.launch import const
from tilewright.optimizer.lower.lowered import LoweredRegion
from tilewright.optimizer.lower.render import kernel_name, render
from tilewright.optimizer.plan.model_cost import merging_pays
from tilewright.optimizer.plan.regions.region import Stage
from tilewright.optimizer.plan.sizes import Sizes
from tilewright.optimizer.records import KernelSpec
from tilewright.optimizer.target import device

FOLDER = Path(__file__).parent / "golden"
SOURCES = "sources.txt"


def keyword_spotting() -> ModelProto:
    """One-dimensional convolutions over a waveform of any length: strided, dilated, depthwise, gated."""
    return parsed(
        """g (float[N,1,T] x) => (float[N,12,1] y) {
          a = Conv<strides=[4], pads=[39,39]>(x, w0)  b = Relu(a)
          c = Conv<pads=[2,2], dilations=[2]>(b, w1)  d = Sigmoid(c)  e = Mul(c, d)
          f = Conv<pads=[4,4], group=64>(e, w2)  g1 = Relu(f)
          h = Conv(g1, w3)  i = Add(h, e)  j = MaxPool<kernel_shape=[4], strides=[4]>(i)
          k = Conv<pads=[1,1], strides=[2]>(j, w4)  l = Relu(k)
          m = GlobalAveragePool(l)  y = Conv(m, w5)
        }""",
        {"w0": (64, 1, 80), "w1": (64, 64, 3), "w2": (64, 1, 9), "w3": (64, 64, 1), "w4": (128, 64, 3), "w5": (12, 128, 1)},
    )


def dense_block(layers: int = 9, growth: int = 12) -> ModelProto:
    """Each layer reads all before it, side by side, behind a BatchNorm of its own: concats of many sources."""
    body, constants, channels = "s = Conv(x, stem)  ", {"stem": np.ones((16, 3, 1, 1), np.float16)}, 16
    for i in range(layers):
        before = ", ".join(["s", *(f"c{k}" for k in range(i))])
        body += f"t{i} = {f'Concat<axis=1>({before})' if i else 'Identity(s)'}  b{i} = BatchNormalization(t{i}, g{i}, h{i}, h{i}, g{i})  r{i} = Relu(b{i})  "
        body += f"{f'c{i}' if i < layers - 1 else 'y'} = Conv<pads=[1,1,1,1]>(r{i}, w{i})  "
        constants |= {
            f"g{i}": np.full(channels, 0.5, np.float16),
            f"h{i}": np.ones(channels, np.float16),
            f"w{i}": np.ones((growth, channels, 3, 3), np.float16),
        }
        channels += growth
    return parsed(f"g (float16[1,3,28,28] x) => (float16[1,{growth},28,28] y) {{ {body} }}", constants)


def zoo(name: str, batch: int | str = 1, dtype: str = "fp32") -> Callable[[], ModelProto]:
    """A model of the zoo in the making."""
    return lambda: model_zoo.build(name, batch=batch, dtype=dtype)


MODELS: Mapping[str, tuple[Callable[[], ModelProto], bool]] = {  # and whether every region is taken, whatever it gains
    "resnet18": (zoo("resnet18"), False),
    "resnet50_fp16": (zoo("resnet50", dtype="fp16"), False),
    "resnet18_any_batch": (zoo("resnet18", batch="N"), False),
    "resnet18_batch_32": (zoo("resnet18", batch=32), False),
    "vgg16": (zoo("vgg16"), False),
    "dense_block_fp16": (dense_block, True),
    "googlenet_fp16": (zoo("googlenet", dtype="fp16"), False),
    "mobilenet_v2": (zoo("mobilenet_v2"), False),
    "mobilenet_v3_large_fp16": (zoo("mobilenet_v3_large", dtype="fp16"), False),
    "efficientnet_b0": (zoo("efficientnet_b0"), False),
    "squeezenet1_1": (zoo("squeezenet1_1"), False),
    "unet": (zoo("unet"), False),
    "vit_b_16": (zoo("vit_b_16"), False),
    "bert_base_fp16": (zoo("bert_base", dtype="fp16"), False),
    "any_size": (cnn, True),
    "any_length": (keyword_spotting, True),
}

IN_FULL = ("any_size", "any_length")  # every argument of every launch


def planned(model: ModelProto, take_all: bool) -> Planned:
    """The plan of ``model`` as `optimize` makes it."""
    view = View(model)
    canonicalize(view, infer(view), lambda: infer(view))
    if may_attend(view):
        shapes = infer(view)
        fuse_attention(view, shapes, lambda: infer(view), lambda *args: merging_pays(device("h200"), shapes, Sizes(shapes, {}), *args))
    return plan(export_model(view), take_all=take_all)


def files() -> dict[str, str]:
    """Name and content of every golden file."""
    made, specs = {}, dict[str, KernelSpec]()
    for name, (build, take_all) in MODELS.items():
        result = planned(build(), take_all)
        lowered = result.lower()
        made[f"plans/{name}.txt"] = summary(name, result, lowered)
        if name in IN_FULL:
            made[f"plans/{name}_in_full.txt"] = "\n".join(f"{region.region}\n{region.plan.to_text()}" for region in lowered)
        specs |= {kernel_name(s): s for region in lowered for s in region.specs.values()}
    return made | {SOURCES: sources_text(specs), MATMUL_PLANS: matmul_plans()}


def summary(name: str, result: Planned, lowered: list[LoweredRegion]) -> str:
    """Regions with the layouts at their borders, a digest of the whole launch plan, their stages and kernels; then what was refused."""
    launches = [launch for region in lowered for launch in region.plan.launches]
    lines = [f"{name}: {len(lowered)} regions, {len(launches)} launches, {len({launch.kernel for launch in launches})} kernels", ""]
    for region in lowered:
        layouts = [" ".join(port.layout for port in ports) for ports in (region.inputs, region.outputs)]
        lines.append(f"{region.region.label} {region.region.compute}, {' -> '.join(layouts)}, plan {digest(region.plan.to_text())}")
        lines += [f"  {stage_text(stage)}" for stage in region.region.stages]
        lines += [f"    {launch.kernel}{f' when {launch.when}' if launch.when != const(1) else ''}" for launch in region.plan.launches]
    refused = Counter((r.rule, r.reason) for r in result.plan.refusals)
    lines += ["", "refused:" if refused else "nothing refused", *(f"  {count} x {rule}: {reason}" for (rule, reason), count in sorted(refused.items()))]
    return "\n".join(lines) + "\n"


def stage_text(stage: Stage) -> str:
    """One stage; of more than three tensors that a concat reads the first and the number."""
    text = str(stage)
    return text if len(stage.reads) <= 3 else f"{stage.source.name} and {len(stage.more)} more: {text.partition(' -> ')[2]}"


def sources_text(specs: Mapping[str, KernelSpec]) -> str:
    """Every kernel of these models with the digest of the source that is compiled, the headers apart."""
    return "".join(f"{digest(render(spec))} {name}\n" for name, spec in sorted(specs.items()))


def digest(text: str) -> str:
    """Twelve hex digits that tell texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
