"""Which region is at fault when only the whole model shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set


def bisect(labels: Sequence[str], fails: Callable[[Set[str]], bool]) -> str | None:
    """The label of one region that makes the model fail; None where it does not fail with all of them.

    Args:
        labels: Regions in the order of the model.
        fails: Whether the model with exactly these regions differs from the original.

    Finds the last region of the shortest failing prefix: about log2(len(labels)) tries.
    """
    if not labels or not fails(set(labels)):
        return None
    low, high = 0, len(labels)  # the first `low` regions are good, the first `high` fail
    while high - low > 1:
        middle = (low + high) // 2
        if fails(set(labels[:middle])):
            high = middle
        else:
            low = middle
    return labels[high - 1]
