"""The `optimize` command: exit codes, a clear sentence for every fault, nothing written then, and what it prints (long because there is one test a fault)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from corpus import CASES
from end_to_end import KERNELS, answers, assert_same
from oplib import REPOSITORY
from tilewright import __version__
from tilewright.optimizer import cli, pipeline
from tilewright.optimizer.config import OptimizeConfig
from tilewright.optimizer.emit import nodes as emit_nodes
from tilewright.optimizer.errors import CompileError
from tilewright.optimizer.result import Check

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def conv_net(shape: tuple[int | str, ...] = ("N", 3, "H", "W")) -> ModelProto:
    """Conv, Relu, Conv with a residual Add: two regions."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.standard_normal((3, 3, 3, 3)).astype(np.float32) / 5, name) for name in ("w1", "w2")]
    body = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["y"], "add"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(body, "net", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Command:
    """Runs the command in a folder of its own with the model at ``model.onnx``."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.model, self.output = folder / "model.onnx", folder / "fast.onnx"
        onnx.save(conv_net(), self.model)

    def __call__(self, *arguments: object, model: object = None, output: object = None) -> int:
        options = ["--target", "sm_90", "--cache-dir", KERNELS]
        self.code = cli.main([str(a) for a in (model or self.model, "-o", output or self.output, *options, *arguments)])
        captured = self.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return self.code

    def refuses(self, code: int, *words: str, arguments: tuple[object, ...] = (), model: object = None, output: object = None) -> None:
        """Asserts exit ``code``, one sentence on standard error that holds ``words``, and that the folder is as it was."""
        before = self.files()
        assert self(*arguments, model=model, output=output) == code, self.err
        assert self.files() == before
        assert self.out == "" and len(self.err.strip().splitlines()) == 1 and self.err.startswith("error: "), self.err
        for word in words:
            assert word in self.err

    def files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in sorted(self.folder.rglob("*")) if p.is_file()}


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(cli, "OptimizeConfig", partial(OptimizeConfig, take_all=True))  # so small a model would not be worth it
    monkeypatch.setenv("COLUMNS", "200")
    return Command(tmp_path, capsys)


# ---- exit code 0


def test_writes_and_prints_one_table(command: Command) -> None:
    assert command() == 0 and command.err == ""
    assert "2 made" in command.out and "comparisons passed" in command.out and "kernels were not run" in command.out
    assert_same(answers(command.model, {"x": X}), answers(command.output, {"x": X}))


def test_quiet_prints_nothing(command: Command) -> None:
    assert command("-q") == 0 and command.out == command.err == ""
    assert command.output.is_file()


def test_verbose_lists_comparisons_and_times(command: Command) -> None:
    assert command("-v") == 0
    assert "ok first: body, CPU" in command.out and "seconds: load" in command.out


def test_nothing_matches(command: Command) -> None:
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [_float("x")], [_float("y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), command.model)
    assert command() == 0 and "0 made" in command.out
    assert command.output.read_bytes() == command.model.read_bytes()


def test_dry_run_writes_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "build", _forbidden)
    assert command("--dry-run") == 0 and "2 made" in command.out and "nothing written" in command.out
    assert list(command.files()) == ["model.onnx"]
    assert cli.main([str(command.model), "--dry-run", "-q"]) == 0, "a dry run needs no -o"


def test_explain(command: Command) -> None:
    assert command("--explain", "--precision", "fp32") == 0
    assert "not rewritten: conv regions: precision fp32: no convolution kernel without TF32 yet [first]" in command.out.replace("\n", " ").replace("  ", " ")
    assert command("--explain") == 0 and "conv x[3] -> b[3] 3x3/1x1" in command.out


def test_reports(command: Command) -> None:
    page, data = command.folder / "report.html", command.folder / "report.json"
    assert command("--report", page, "--json", data) == 0
    report = json.loads(data.read_text())
    assert report["files"] == [str(command.output)] and len(report["regions"]) == 2 and report["checks"] and not report["not_verified"]
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "FusedConvRegion_sm90_0" in text and "http" not in text


def test_no_verify(command: Command) -> None:
    assert command("--no-verify") == 0 and "NOT VERIFIED: --no-verify was given" in command.out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0 and __version__ in capsys.readouterr().out


def test_inspect(command: Command) -> None:
    assert command() == 0
    assert cli.main(["inspect", str(command.output)]) == 0
    listed = command.capsys.readouterr().out
    assert "1 custom node(s)" in listed and "sm90" in listed and "conv_igemm" in listed.replace("\n", "")
    assert cli.main(["inspect", str(command.output), "--runtime"]) == 0
    assert "body" in command.capsys.readouterr().out


def test_zoo_model(command: Command) -> None:
    assert command("--no-verify", "--passes", "canonicalize", model="zoo:squeezenet1_1") == 0
    assert onnx.load(command.output).graph.node


def test_a_model_called_inspect_is_a_model(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (command.folder / "inspect").write_bytes(command.model.read_bytes())
    monkeypatch.chdir(command.folder)
    assert command(model="inspect") == 0 and command.output.is_file()


def test_module_in_a_pipe(command: Command) -> None:
    """As a user runs it: progress only on a terminal, the table on standard output."""
    line = [sys.executable, "-m", "tilewright.optimizer", command.model, "-o", command.output, "--target", "sm_90", "--cache-dir", KERNELS]
    done = subprocess.run(list(map(str, line)), env={"PYTHONPATH": str(REPOSITORY / "src"), "PATH": ""}, capture_output=True, text=True, check=True)
    assert done.stderr == "" and "regions" in done.stdout and "\x1b" not in done.stdout


# ---- shapes


@pytest.mark.parametrize("flags", [
    ("--opt-shapes", "x:1x3x224x224"),
    ("--min-shapes", "x:1x3x8x8", "--opt-shapes", "x:[4,3,64,64]", "--max-shapes", "x:8x3x512x512"),
    ("--minShapes", "x:1x3x8x8", "--maxShapes", "x:8x3x512x512"),
    ("--dim", "N=1..64", "--dim", "H=8..512", "--dim", "W=8.."),
])  # fmt: skip
def test_ranges_freeze_nothing(command: Command, flags: tuple[str, ...]) -> None:
    assert command(*flags) == 0
    model = onnx.load(command.output)
    assert model.graph.input == onnx.load(command.model).graph.input
    for shape in ((1, 3, 8, 8), (3, 3, 17, 5)):
        feeds = {"x": np.ones(shape, np.float32)}
        assert_same(answers(command.model, feeds), answers(command.output, feeds))


def test_overwrite_freezes(command: Command) -> None:
    assert command("--overwrite-input-shape", "x:1x3x8x8") == 0
    dims = onnx.load(command.output).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [1, 3, 8, 8]
    assert command("--overwrite-input-shape", "x:1x3x8x8", "--passes", "none") == 0


# ---- exit code 1: the model or the file system


def _float(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"])


def _forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("this must not be called")


@pytest.mark.parametrize(("content", "words"), [
    (b"", "not an ONNX model"),
    (b"this is a text file", "not an ONNX model"),
    (b"\x08\x08", "not an ONNX model"),
    (None, "cut short"),
], ids=["empty", "text", "no graph", "truncated"])  # fmt: skip
def test_not_a_model(command: Command, content: bytes | None, words: str) -> None:
    command.model.write_bytes(command.model.read_bytes()[:-100] if content is None else content)
    command.refuses(1, str(command.model), words)


def test_no_such_model(command: Command) -> None:
    command.refuses(1, "missing.onnx", "cannot be read", model=command.folder / "missing.onnx")


def test_missing_external_data(command: Command) -> None:
    onnx.save(conv_net(), command.model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (command.folder / "weights.bin").unlink()
    command.refuses(1, "weights.bin", "is missing")


def test_short_external_data(command: Command) -> None:
    onnx.save(conv_net(), command.model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (command.folder / "weights.bin").write_bytes(b"x")
    command.refuses(1, "weights.bin", "cut short", "1 bytes")


def test_external_data_outside(command: Command) -> None:
    (command.folder / "in").mkdir()
    onnx.save(conv_net(), command.folder / "in" / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(command.folder / "in" / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../weights.bin"
    (command.folder / "in" / "weights.bin").rename(command.folder / "weights.bin")
    onnx.save(model, command.folder / "in" / "model.onnx")
    command.refuses(1, "outside the model's folder", model=command.folder / "in" / "model.onnx")


def test_output_that_cannot_be_written(command: Command) -> None:
    command.refuses(1, "does not exist", output=command.folder / "nowhere" / "fast.onnx")
    (command.folder / "folder").mkdir()
    command.refuses(1, "it is a folder", output=command.folder / "folder")


def test_report_that_cannot_be_written(command: Command) -> None:
    assert command("--json", command.folder / "nowhere" / "report.json") == 1
    assert "cannot be written" in command.err


def _broken(change: Callable[[onnx.GraphProto], None]) -> ModelProto:
    model = conv_net()
    change(model.graph)
    return model


def _cycle(graph: onnx.GraphProto) -> None:
    graph.node[0].input[0] = "y"


def _undefined(graph: onnx.GraphProto) -> None:
    graph.node[0].input[0] = "nobody"


def _twice(graph: onnx.GraphProto) -> None:
    graph.node[1].output[0] = "a"
    graph.node[2].input[0] = "a"


@pytest.mark.parametrize(("change", "words"), [(_cycle, "cycle"), (_undefined, "nobody"), (_twice, "a")], ids=["cycle", "undefined", "twice"])
def test_invalid_graph(command: Command, change: Callable[[onnx.GraphProto], None], words: str) -> None:
    onnx.save(_broken(change), command.model)
    command.refuses(1, str(command.model), words)


def test_inputs_file(command: Command) -> None:
    file = command.folder / "inputs.npz"
    command.refuses(1, "inputs.npz", "cannot be read", arguments=("--inputs", file))
    np.savez(file, z=X)
    command.refuses(2, "input 'x' of the model is missing", arguments=("--inputs", file))
    np.savez(file, x=X.astype(np.float64))
    command.refuses(2, "float64", arguments=("--inputs", file))
    np.savez(file, x=X)
    assert command("--inputs", file) == 0


# ---- exit code 2: usage


@pytest.mark.parametrize(("arguments", "words"), [
    (("--unknown",), "--unknown"),
    (("--precision", "int3"), "int3"),
    (("--precision", "bf16"), "bf16 is not supported yet"),
    (("--passes", "magic"), "magic"),
    (("--target", "sm_35"), "unsupported target 'sm_35'"),
    (("--target", "native"), "no GPU"),
    (("--target", ""), "--target is empty"),
    (("--opt-shapes", "x:1x3"), "x"),
    (("--opt-shapes", "x:1x4x8x8"), "is 3 in the model, 4 was given"),
    (("--opt-shapes", "z:1x3x8x8"), "no input 'z'"),
    (("--opt-shapes", "nonsense"), "nonsense"),
    (("--overwrite-input-shape", "x:1x5x8x8"), "is 3 in the model"),
    (("--dim", "N=9..1"), "the range of 'N' is empty"),
    (("--dim", "Q=1..4"), "Q"),
    (("--max-error", "much"), "much"),
])  # fmt: skip
def test_usage(command: Command, arguments: tuple[str, ...], words: str) -> None:
    command.refuses(2, words, arguments=arguments)


def test_op_library_that_is_not_built(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are optimized all the same; what needs the library says so in one sentence."""
    monkeypatch.setenv("TILEWRIGHT_LIBRARY", str(command.folder / "nowhere.so"))
    command.refuses(2, "no GPU can be asked for", "nowhere.so", arguments=("--target", "native"))
    assert command() == 0
    assert cli.main(["inspect", str(command.output), "--runtime"]) == 0
    assert "body: TILEWRIGHT_LIBRARY names" in " ".join(command.capsys.readouterr().out.split())


def test_missing_output(command: Command) -> None:
    assert cli.main([str(command.model)]) == 2
    assert "-o" in command.capsys.readouterr().err


def test_unknown_zoo_model(command: Command) -> None:
    command.refuses(2, "the zoo has no model 'resnet51'", "resnet50", model="zoo:resnet51")


def test_output_is_the_input(command: Command) -> None:
    command.refuses(2, "the output is the input", output=command.model)
    link = command.folder / "link.onnx"
    link.symlink_to(command.model)
    command.refuses(2, "the output is the input", output=link)
    onnx.save(conv_net(), command.model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    command.refuses(2, "the output is the input", output=command.folder / "weights.bin")


# ---- exit codes 3 and 4


def test_verification_fails_in_canonicalize(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule is no region's fault: nothing is written."""

    def wrong(view: Any, *_: Any) -> Any:
        view.graph.nodes[1].op = "Abs"
        return pipeline.CanonicalizeReport()

    monkeypatch.setattr(pipeline, "canonicalize", wrong)
    command.refuses(3, "differs from the original", "canonicalized", "nothing was written", arguments=("--passes", "canonicalize"))


def test_wrong_region_is_dropped(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong body: the region is dropped and named, the other is kept."""
    right = emit_nodes.function_body

    def wrong(lowered: Any, opset: int) -> Any:
        body = right(lowered, opset)
        if lowered.region.label == "second":
            body.node[-1].op_type = "Neg"
        return body

    monkeypatch.setattr(emit_nodes, "function_body", wrong)
    assert command("--explain") == 0 and "1 made" in command.out
    assert "its results differ from the original's: body, CPU" in command.out.replace("\n", " ") and "[second]" in command.out
    assert_same(answers(command.model, {"x": X}), answers(command.output, {"x": X}))


def test_every_attempt_fails(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(node: Any, *_: Any) -> list[Check]:
        label = node.lowered.region.label
        return [Check(f"{label}: body, CPU", 1.0, 1.0, 1e-4, region=label)]

    monkeypatch.setattr(pipeline, "check_region", failing)
    monkeypatch.setattr(pipeline, "MAX_ATTEMPTS", 1)
    command.refuses(3, "regions kept failing verification", "first", "nothing was written")


def test_require_verify(command: Command) -> None:
    model = conv_net()
    model.graph.node.append(helper.make_node("Unknown", ["y"], ["z"], domain="com.example"))
    model.graph.output[0].name = "z"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(model, command.model)
    assert command() == 0 and "NOT VERIFIED: the original does not load in ONNX Runtime" in command.out.replace("│", "").replace("\n", " ")
    command.output.unlink()
    command.refuses(3, "nothing can be compared", arguments=("--require-verify",))


def test_internal_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(pipeline, "infer", broken)
    assert command() == 4
    assert "internal error: RuntimeError: a bug of ours; nothing was written. Please report it" in command.err and "Traceback" in command.err
    assert list(command.files()) == ["model.onnx"]


def test_kernel_that_does_not_compile(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its regions are left to ONNX Runtime with the compiler's words as the reason."""
    right = pipeline.build

    def build(specs: Any, *rest: Any) -> Any:
        built = right(specs, *rest)
        for name in [n for n in built.images if n.startswith("conv_igemm") and "AddFull" in n]:
            del built.images[name]
            built.failures[name] = CompileError("registers spilled")
        return built

    monkeypatch.setattr(pipeline, "build", build)
    assert command("--explain") == 0 and "1 made" in command.out
    assert "its kernel does not compile (registers spilled)" in command.out.replace("\n", " ")


@pytest.mark.parametrize("name", ["metadata", "conv_in_if"])
def test_corpus_through_the_command(command: Command, name: str) -> None:
    onnx.save(CASES[name].build(), command.model)
    assert command() == 0
