"""Products by constant weights on a GPU: lowered plans with all their tiles, on rows that no vector divides, against the numpy twins."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.codes import Codes
from gpu.driver import Gpu
from lowering_harness import relative
from matmul_cases import ROWS, inputs_of, lower, random_product
from plan_harness import plan
from twins import run_plan

pytestmark = pytest.mark.gpu

BOUND = 1e-3  # relative Frobenius error against float64
SEEDS = range(48)


@pytest.fixture(scope="module")
def codes(gpu, request) -> Codes:
    result = Codes(gpu.arch, request.config.cache.mkdir("kernels"))
    result.compile_ahead(spec for seed in SEEDS for spec in lower(plan(random_product(seed).made)).specs.values())
    return result


@pytest.mark.parametrize("seed", SEEDS)
def test_random_product(seed: int, gpu: Gpu, codes: Codes):
    product = random_product(seed)
    lowered = lower(plan(product.made))
    for rows in ROWS:
        feeds = inputs_of(lowered, product.feeds(rows, np.random.default_rng(seed)))
        (want,) = run_plan(lowered.plan, lowered.specs, feeds, gpu.sms)
        (got,) = gpu.run_plan(lowered.plan, lowered.specs, codes, feeds)
        assert relative(got, want) < BOUND, (rows, product.depth, product.columns)
