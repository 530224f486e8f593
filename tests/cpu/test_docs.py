"""The documents: links and anchors resolve, options and exit codes are those of the command, snippets run or parse, tables are drawn from the results."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from corpus.case import parsed
from end_to_end import KERNELS
from oplib import REPOSITORY, build
from tilewright import custom_ops, kernels_ptx, model_zoo
from tilewright.optimizer import cli, errors
from tilewright.optimizer import inspect as inspect_command
from tilewright.optimizer.config import PASSES, PRECISIONS, OptimizeConfig
from tilewright.optimizer.target import parse_targets

PAGES = sorted([*REPOSITORY.glob("*.md"), *(p for folder in ("docs", "benchmarks", "kernels_ptx") for p in (REPOSITORY / folder).rglob("*.md"))])
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
SHELL_TOOLS = ("tools/demo", "tools/test", "tools/golden", "tools/gpu_check", "tools/draw_results", "tools/test_runtimes")


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def label(self) -> str:
        return f"{name(self.page)}:{self.line}"


def snippets() -> Iterator[Snippet]:
    for page in PAGES:
        text = page.read_text()
        for found in FENCE.finditer(text):
            yield Snippet(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])


SNIPPETS = list(snippets())
PYTHON = [s for s in SNIPPETS if s.language == "python"]
SHELL = [s for s in SNIPPETS if s.language in ("", "sh", "bash", "console") and not s.text.startswith("load ->")]


def by_label(snippet: Snippet) -> str:
    return snippet.label


def test_the_pages_that_must_be_there() -> None:
    names = {name(p) for p in PAGES}
    assert names >= {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/README.md", "docs/cli.md", "docs/perf-log.md", "benchmarks/README.md"}
    listed = {(REPOSITORY / "docs" / target).resolve() for target in LINK.findall((REPOSITORY / "docs" / "README.md").read_text())}
    assert {p.resolve() for p in (REPOSITORY / "docs").glob("*.md")} - listed == {REPOSITORY / "docs" / "README.md"}, "docs/README.md lists every page"


# ---- links


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    headings = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", h) for h in re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            broken += [] if target.startswith("https://") else [target]
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(REPOSITORY) or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_anchors(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c, d\n[1](#a-b-c-d) [2](#e) [3](page.md) [4](nowhere.md) [5](../x) [6](page.md#f) [7](https://x.y) [8](http://x.y)\n```\n[9](z)\n```\n"
    )
    assert broken_links(page) == ["#e", "nowhere.md", "../x", "page.md#f", "http://x.y"]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    """Paths in code spans, of the folders of this repository."""
    folders = "optimizer|custom_ops|kernels_ptx|model_zoo|tests|tools|benchmarks|docs|shared"
    for path in re.findall(rf"`((?:{folders})/[\w./*{{}},-]+)`", page.read_text()):
        alternatives = re.sub(r"\{(\w+).*?\}", r"\1", path)
        assert list(REPOSITORY.glob(alternatives.rstrip("/"))) or (page.parent / path).exists(), f"{name(page)} names {path}"


# ---- the command line


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The spellings that are shown: of each option all but aliases in camel case."""
    return {o for action in parser._actions for o in action.option_strings if not re.search("[A-Z]", o)} - {"-h", "--help"}


def documented() -> set[str]:
    """Options in the first column of the table in docs/cli.md."""
    rows = re.findall(r"^\| *(`-.*?) *\|", (REPOSITORY / "docs" / "cli.md").read_text().replace(r"\|", "/"), re.MULTILINE)
    return {option for row in rows for option in OPTION.findall(row)}


def test_every_option_is_documented_and_no_other() -> None:
    ours = options_of(cli._parser()) - {"-o", "--output", "--quiet", "--verbose"}
    assert documented() == ours


def test_every_option_that_a_page_names_exists() -> None:
    """In code spans that begin with two dashes."""
    tools = {o for tool in SHELL_TOOLS for o in re.findall(r'"(--[\w-]+)"', (REPOSITORY / tool).read_text())} | {"--runtime", "--output"}
    known = options_of(cli._parser()) | tools
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][\w-]*)", FENCE.sub("", page.read_text())):
            assert option in known, f"{name(page)} names {option}"


def row(option: str) -> str:
    """The row of docs/cli.md for ``option``."""
    return next(line for line in (REPOSITORY / "docs" / "cli.md").read_text().splitlines() if line.startswith(f"| `{option}"))


def test_values_are_documented() -> None:
    assert all(f"`{p}`" in row("--precision") or p in row("--precision").split("`")[1] for p in PRECISIONS)
    assert set(re.findall(r"\w+", row("--precision").split("`")[1])) - {"precision"} == set(PRECISIONS)
    assert all(f"`{p}`" in row("--passes") for p in PASSES)
    targets = re.findall(r"`(portable|native|sm_\w+)`", row("--target"))
    assert [t.name for t in parse_targets(",".join(t for t in dict.fromkeys(targets) if t != "native"))]
    assert f"Default `{cli.DEFAULT_TARGETS}`" in row("--target")
    described = set(re.findall(r"\[target\.(\w+)\]", (REPOSITORY / "optimizer" / "targets.toml").read_text()))
    assert described == set(targets) - {"native"}


def test_exit_codes() -> None:
    codes = {int(c): text for c, text in re.findall(r"^\| (\d) \| (.+) \|$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)}
    assert sorted(codes) == [0, 1, 2, 3, 4] and codes[4].startswith("internal error") and cli.EXIT_INTERNAL == 4
    assert codes[errors.ModelError.exit_code].startswith("the model") and codes[errors.UsageError.exit_code].startswith("usage")
    assert codes[errors.VerificationError.exit_code].startswith("verification failed")


def command_lines(snippet: Snippet) -> Iterator[list[str]]:
    for line in snippet.text.splitlines():
        yield shlex.split(line, comments=True)


OPTIMIZE = [(s.label, words) for s in SHELL for words in command_lines(s) if words[:1] == ["optimize"]]
INLINE = [(name(p), shlex.split(c)) for p in PAGES for c in re.findall(r"`(optimize (?:zoo:|\w+\.onnx|inspect )[^`]*)`", FENCE.sub("", p.read_text()))]


@pytest.mark.parametrize(("where", "words"), OPTIMIZE + INLINE, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_command_lines_parse(where: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [w.strip("[]") for w in words[1:] if w != "[options]"]
    if arguments[0] in cli.COMMANDS:
        loaded: list[Any] = []
        monkeypatch.setattr(inspect_command, "load", lambda path: loaded.append(path) or _stop())
        with pytest.raises(_Stop):
            inspect_command.main(arguments[1:])
        assert loaded
        return
    args = cli._parser().parse_args(arguments)
    assert isinstance(cli._config(args), OptimizeConfig) and (args.output or args.dry_run), where


class _Stop(Exception):
    pass


def _stop() -> None:
    raise _Stop


def test_zoo_models_of_the_pages_exist(capsys: pytest.CaptureFixture[str]) -> None:
    models = {w.removeprefix("zoo:") for _, words in OPTIMIZE + INLINE for w in words if w.startswith("zoo:")}
    assert models and models - {"NAME", "list"} <= set(model_zoo.names())
    assert cli.main(["zoo:list", "-o", "x.onnx"]) == 2 and "resnet50" in capsys.readouterr().err


# ---- snippets


@pytest.mark.parametrize("snippet", SHELL, ids=by_label)
def test_shell_snippets(snippet: Snippet) -> None:
    """They parse, and what they call by a path exists."""
    done = subprocess.run(["bash", "-n"], input=snippet.text.replace("[options]", "").replace("[--runtime]", ""), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    for words in command_lines(snippet):
        program = next((w for w in words if "=" not in w), "")
        assert not program.startswith(("./", "tools/")) or (REPOSITORY / program).is_file(), f"{snippet.label}: {program}"
        for word in words:
            assert not word.startswith("tests/") or (REPOSITORY / word).exists(), f"{snippet.label}: {word}"


@pytest.mark.parametrize("snippet", PYTHON, ids=by_label)
def test_python_snippets_name_what_there_is(snippet: Snippet) -> None:
    """They compile, and every name that they import from the package is there."""
    for node in ast.walk(ast.parse(snippet.text, snippet.label)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tilewright"):
            for alias in node.names:
                module = importlib.import_module(node.module)
                assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), ast.unparse(node)


def test_python_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the model and the image that they speak of, that which optimizes first; what demands kernels fails here as it says."""
    monkeypatch.chdir(tmp_path)
    for variable, value in (("LOG", "off"), ("CACHE_DIR", KERNELS), ("LIBRARY", build() / custom_ops.loader.LIBRARY)):
        monkeypatch.setenv(f"TILEWRIGHT_{variable}", str(value))
    onnx.save(parsed("g (float[n,3,8,8] input) => (float[n,4,8,8] y) { y = Conv<pads=[1,1,1,1]>(input, w) }", {"w": (4, 3, 3, 3)}), "model.onnx")
    for snippet in sorted(PYTHON, key=lambda s: "optimize(" not in s.text):
        values: dict[str, Any] = {"image": np.ones((1, 3, 8, 8), np.float32)}
        for statement in ast.parse(snippet.text, snippet.label).body:
            demands = (
                "require_kernels=True" in ast.unparse(statement) and not custom_ops.supported() and any(n.domain for n in onnx.load("fast.onnx").graph.node)
            )
            with pytest.raises(custom_ops.OpLibraryError) if demands else contextlib.nullcontext():
                exec(compile(ast.Module([statement], []), snippet.label, "exec"), values)
        assert values.get("result") or values.get("session"), snippet.label
    assert len(PYTHON) >= 3 and (tmp_path / "fast.onnx").is_file()


# ---- tables


def test_tables_are_drawn_from_the_results() -> None:
    done = subprocess.run([sys.executable, "tools/draw_results", "--check"], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stale_table_is_found(tmp_path: Path) -> None:
    for part in ("README.md", "benchmarks", "tools"):
        subprocess.run(["cp", "-r", str(REPOSITORY / part), str(tmp_path / part)], check=True)
    page = tmp_path / "README.md"
    page.write_text(page.read_text().replace("| googlenet |", "| googlenet, faster |", 1))
    done = subprocess.run([sys.executable, "tools/draw_results", "--check"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "README.md: its results are stale; run tools/draw_results\n"


def test_templates_are_explained() -> None:
    text = (REPOSITORY / "kernels_ptx" / "README.md").read_text()
    assert [t for t in kernels_ptx.template_names() if f"`{t}`" not in text] == []


def test_environment_variables_are_those_that_are_read() -> None:
    """Every TILEWRIGHT_ variable of the pages is read somewhere in the sources, and every one that Python reads is on a page."""
    pages = {v for p in PAGES for v in re.findall(r"TILEWRIGHT_[A-Z_]+[A-Z]", p.read_text())}
    sources = {p: p.read_text() for folder in ("optimizer", "custom_ops") for p in (REPOSITORY / folder).rglob("*") if p.suffix in (".py", ".cc", ".h")}
    read = {v for text in sources.values() for v in re.findall(r"TILEWRIGHT_[A-Z_]+[A-Z]", text)}
    from_python = {v for p, text in sources.items() if p.suffix == ".py" for v in re.findall(r'"(TILEWRIGHT_[A-Z_]+)"', text)}
    assert pages - read == set() and from_python - pages == set()
