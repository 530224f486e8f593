"""What the tests of kernels share."""

from __future__ import annotations

import pytest

from gpu.driver import Gpu


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu()
