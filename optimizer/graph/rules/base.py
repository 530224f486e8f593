"""What a rewrite rule is: it matches and rewrites, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...records import Applied, Refusal
from ..view import Node

if TYPE_CHECKING:
    from .context import Context


class Refuse(Exception):
    """Raised inside a rule where what looks like a match fails a condition; :meth:`Rule.apply` makes a :class:`Refusal` of it."""


def require(condition: bool, reason: str) -> None:
    """Refuses with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise Refuse(reason)


@dataclass(frozen=True)
class Rule:
    """One rewrite.

    Attributes:
        name: What reports and ``Node.rule`` call it.
        ops: Ops of the default domain that it looks at; empty for every node of any domain.
        rewrite: Returns the labels of the nodes that it replaced or changed, or None where the node does not look like a match.
    """

    name: str
    ops: tuple[str, ...]
    rewrite: Callable[[Context, Node], Sequence[str] | None]

    @property
    def summary(self) -> str:
        """What becomes what, in one line."""
        return (self.rewrite.__doc__ or "").strip().splitlines()[0]

    def apply(self, ctx: Context, node: Node) -> Applied | Refusal | None:
        """Tries the rule at ``node``; the graph is changed only if the answer is :class:`Applied`."""
        if self.ops and not (node.standard(*self.ops) and ctx.builtin(node)):
            return None
        try:
            labels = self.rewrite(ctx, node)
        except Refuse as refused:
            return Refusal(self.name, str(refused), (node.label,))
        return None if labels is None else Applied(self.name, tuple(labels))


def rule(name: str, *ops: str) -> Callable[[Callable[[Context, Node], Sequence[str] | None]], Rule]:
    """Makes a :class:`Rule` of the function below it."""
    return lambda rewrite: Rule(name, ops, rewrite)
