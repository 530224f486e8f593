"""Golden plans of matrix products: what the planner chooses for fifty shapes with an analytic pool for the H200. Times are left out."""

from __future__ import annotations

from matmul_pools import h200_pool
from oplib import library
from tilewright.optimizer.plan.matmul.online import Planner

NAME = "matmul_plans.txt"

# (N, K) of BERT-base, ViT-L, Llama-7B and of irregular products, with the rows each is planned for.
SHAPES = [
    *((m, n, k) for n, k in ((768, 768), (3072, 768), (768, 3072), (2304, 768)) for m in (1, 17, 128, 512)),
    *((m, n, k) for n, k in ((1024, 1024), (4096, 1024), (1024, 4096), (3072, 1024)) for m in (8, 197, 577)),
    *((m, n, k) for n, k in ((4096, 4096), (11008, 4096), (4096, 11008), (12288, 4096)) for m in (1, 64, 1500)),
    *((m, n, k) for n, k in ((1000, 2048), (257, 1111), (4097, 513)) for m in (5, 257, 3000)),
    (4096, 4096, 4096),
]


def matmul_plans() -> str:
    """One line a shape."""
    pool = h200_pool()
    planner = Planner(pool, library().path)
    return "".join(f"{m:>5} x {n:>5} x {k:>5}  {planner.plan(1, m, n, k).describe(pool)}\n" for m, n, k in SHAPES)
