"""The records that stages hand on. All are frozen and print as the stable text that golden tests, cache keys and ``--explain`` use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why something was not rewritten: the rule or planner that refused, the reason, the nodes at fault."""

    rule: str
    reason: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}" + (f" [{', '.join(self.nodes)}]" if self.nodes else "")


@dataclass(frozen=True)
class Applied:
    """One rewrite that was made: its rule and the nodes that it replaced or changed."""

    rule: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelSpec:
    """One kernel to compile: a template of ``kernels_ptx/templates`` and its constexpr parameters in the template's order.

    A parameter is an int, a bool, or the C++ text of a type (``tilewright::Epilogue<tilewright::Bias>``).
    """

    template: str
    params: tuple[tuple[str, int | bool | str], ...]

    @staticmethod
    def of(template: str, params: Mapping[str, int | bool | str]) -> KernelSpec:
        """A spec from a mapping, order kept."""
        return KernelSpec(template, tuple(params.items()))

    def __getitem__(self, name: str) -> int | bool | str:
        return dict(self.params)[name]

    def __str__(self) -> str:
        return f"{self.template}({', '.join(f'{k}={v}' for k, v in self.params)})"


@dataclass(frozen=True)
class Activation:
    """One elementwise function in its canonical spelling, the same whatever ops spelt it in the file.

    Attributes:
        kind: ``relu``; ``clip`` (a = low, b = high, either may be infinite); ``leaky_relu`` (a = slope); ``prelu`` (slope is a tensor);
            ``sigmoid``; ``tanh``; ``hard_sigmoid`` (max(0, min(1, a*x + b))); ``hard_swish`` (x * hard_sigmoid(1/6, 1/2)); ``silu``;
            ``gelu`` (erf); ``gelu_tanh``; ``mish``.
        a, b: Parameters, float.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}({self.a:g},{self.b:g})" if self.kind in ("clip", "leaky_relu", "hard_sigmoid") else self.kind
