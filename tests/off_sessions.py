"""Sessions in place of a GPU's whose results are off by a known error, and the errors at which kernels pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Off:
    """A session whose float outputs are off by a relative error."""

    def __init__(self, session: Any, error: float) -> None:
        self.session, self.error = session, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, names: Any, inputs: Any) -> list[np.ndarray]:
        return [y * np.asarray(1 + self.error, y.dtype) if y.dtype.kind == "f" else y for y in self.session.run(names, inputs)]


bounds_of_kernels = pytest.mark.parametrize(("vendor", "ours", "bound", "passed"), [
    (0.0, 0.9e-3, 1e-3, True),
    (0.0, 1.1e-3, 1e-3, False),
    (1e-2, 1.2e-2, 1.3e-2, True),
    (1e-2, 1.4e-2, 1.3e-2, False),
])  # fmt: skip
