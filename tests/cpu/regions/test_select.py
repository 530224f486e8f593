"""Which regions are made: how tensors cross between them for any choice, and the choice itself, judged with its neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from corpus.case import parsed
from plan_harness import Planned, plan
from rule_harness import weights
from tilewright.optimizer.plan.regions.plan import NOT_WORTH_IT, plan_regions
from tilewright.optimizer.plan.regions.region import Region
from tilewright.optimizer.plan.regions.select import Borders, select

PADS = "pads=[1,1,1,1]"
SQUARE = {f"w{i}": weights(8, 8, 3, 3, seed=i) for i in range(8)}


def net(body: str, outputs: str = "float[n,8,h,w] y", inputs: str = "float[n,8,h,w] x", constants: Mapping[str, Any] | None = None) -> ModelProto:
    return parsed(f"g ({inputs}) => ({outputs}) {{ {body} }}", SQUARE if constants is None else constants)


def chain(length: int) -> str:
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    return "  ".join(f"{b} = Conv<{PADS}>({a}, w{i % 8})" for i, (a, b) in enumerate(itertools.pairwise(names)))


def borders_of(planned: Planned) -> tuple[Borders, dict[str, Region]]:
    """Borders between all regions of a plan, and the regions by their output."""
    return Borders(planned.regions, planned.shapes), {r.output.name: r for r in planned.regions}


# ---- borders


def test_a_tensor_between_two_chosen_regions_is_channels_last() -> None:
    borders, by_name = borders_of(plan(net(chain(3))))
    a, b, c = by_name["t0"], by_name["t1"], by_name["y"]
    assert borders.neighbours(b) == {a, c} and borders.neighbours(a) == {b}
    everyone = {a, b, c}
    assert [borders.conversions(r, everyone) for r in (a, b, c)] == [1, 0, 1], "only the model's own input and output"
    assert {t.name for t in borders.nhwc_inputs(b, everyone)} == {"t0"}
    assert borders.nhwc_output(b, everyone) and not borders.nchw_output(b, everyone)
    assert not borders.nhwc_output(c, everyone) and borders.nchw_output(c, everyone)
    assert [borders.conversions(r, {a, c}) for r in (a, c)] == [2, 2], "without the one in the middle both must change layouts"
    assert borders.nhwc_inputs(b, {b, c}) == frozenset() and borders.conversions(b, {b}) == 2


def test_a_result_that_others_read_too_crosses_in_both_layouts() -> None:
    borders, by_name = borders_of(plan(net(f"t = Conv<{PADS}>(x, w0)  y = Conv<{PADS}>(t, w1)  z = Sin(t)", "float[n,8,h,w] y, float[n,8,h,w] z")))
    everyone = set(by_name.values())
    assert borders.nhwc_output(by_name["t"], everyone) and borders.nchw_output(by_name["t"], everyone)
    assert borders.conversions(by_name["t"], everyone) == 2


def test_a_result_that_is_an_output_too_crosses_in_both_layouts() -> None:
    borders, by_name = borders_of(plan(net(f"t = Conv<{PADS}>(x, w0)  y = Conv<{PADS}>(t, w1)", "float[n,8,h,w] y, float[n,8,h,w] t")))
    everyone = set(by_name.values())
    assert borders.nhwc_output(by_name["t"], everyone) and borders.nchw_output(by_name["t"], everyone)


def test_operands_cross_like_inputs() -> None:
    body = f"t = Conv<{PADS}>(x, w0)  r = Conv<{PADS}>(x, w1)  q = Neg(r)  c = Conv<{PADS}>(t, w2)  s = Add(c, r)  y = Relu(s)"
    borders, by_name = borders_of(plan(net(body, "float[n,8,h,w] y, float[n,8,h,w] q")))
    last = by_name["y"]
    assert {t.name for t in borders.nhwc_inputs(last, set(by_name.values()))} == {"t", "r"}
    assert {t.name for t in borders.nhwc_inputs(last, {last, by_name["r"]})} == {"r"}
    assert borders.neighbours(last) == {by_name["t"], by_name["r"]}


def test_one_pixel_a_sample_has_no_layout() -> None:
    body = f"t = Conv<{PADS}>(x, w0)  g = GlobalAveragePool(t)  y = Conv(g, k)"
    borders, by_name = borders_of(plan(net(body, "float[n,8,1,1] y", constants=SQUARE | {"k": weights(8, 8, 1, 1)})))
    assert {t.name for t in borders.flat} == {"g", "y"}
    assert borders.conversions(by_name["g"], {by_name["g"]}) == 1 and borders.conversions(by_name["y"], {by_name["y"]}) == 0


def test_a_result_that_a_branch_reads() -> None:
    branches = "then_branch = a () => (float[p,8,q,r] o) { o = Sin(t) }, else_branch = b () => (float[p,8,q,r] u) { u = Cos(x) }"
    body = f"t = Conv<{PADS}>(x, w0)  y = Conv<{PADS}>(t, w1)  z = If(f) <{branches}>"
    borders, by_name = borders_of(plan(net(body, "float[n,8,h,w] y, float[n,8,h,w] z", "float[n,8,h,w] x, bool f")))
    assert borders.nchw_output(by_name["t"], set(by_name.values()))


def test_a_result_that_a_branch_hands_out() -> None:
    branches = "then_branch = a () => (float[p,8,q,r] t) { }, else_branch = b () => (float[p,8,q,r] u) { u = Cos(x) }"
    body = f"t = Conv<{PADS}>(x, w0)  y = Conv<{PADS}>(t, w1)  z = If(f) <{branches}>"
    borders, by_name = borders_of(plan(net(body, "float[n,8,h,w] y, float[n,8,h,w] z", "float[n,8,h,w] x, bool f")))
    assert borders.nchw_output(by_name["t"], set(by_name.values())) and borders.nhwc_output(by_name["t"], set(by_name.values()))


def test_regions_of_other_precision_are_no_neighbours() -> None:
    body = f"t = Conv<{PADS}>(x, w0)  c = Cast<to=10>(t)  y = Conv<{PADS}>(c, h)"
    planned = plan(net(body, "float16[n,8,h,w] y", constants={"w0": SQUARE["w0"], "h": SQUARE["w0"].astype(np.float16)}))
    assert len(planned.regions) == 2
    borders = Borders(planned.regions, planned.shapes)
    assert all(borders.neighbours(r) == set() and borders.conversions(r, set(planned.regions)) == 2 for r in planned.regions)


# ---- the choice


@dataclass(frozen=True)
class Prices:
    """Made-up prices by output: of a region without changes of layout, of one such change, and of ONNX Runtime."""

    ours: Mapping[str, float]
    change: float
    vendor: Mapping[str, float]

    def ours_us(self, region: Region, conversions: int) -> float:
        return self.ours[region.output.name] + self.change * conversions

    def vendor_us(self, region: Region) -> float:
        return self.vendor[region.output.name]

    def total(self, borders: Borders, chosen: Set[Region]) -> float:
        return sum(self.ours_us(r, borders.conversions(r, chosen)) if r in chosen else self.vendor_us(r) for r in borders.regions)


def chosen(body: str, ours: Sequence[float], vendor: Sequence[float], change: float, outputs: str = "float[n,8,h,w] y") -> set[str]:
    """Outputs of the regions that are chosen; prices in the order of the regions."""
    borders, by_name = borders_of(plan(net(body, outputs)))
    prices: Any = Prices(dict(zip(by_name, ours, strict=True)), change, dict(zip(by_name, vendor, strict=True)))
    return {r.output.name for r in select(borders, prices)}


def test_each_by_itself() -> None:
    split = f"t = Conv<{PADS}>(x, w0)  s = Sin(t)  y = Conv<{PADS}>(s, w1)"
    assert chosen(split, [5, 5], [10, 10], 1) == {"t", "y"}
    assert chosen(split, [5, 5], [10, 6], 1) == {"t"}, "two changes of layout: 7 against 6"
    assert chosen(split, [5, 5], [10, 7], 1) == {"t"}, "as dear as ONNX Runtime is not worth a rewrite"
    assert chosen(split, [11, 12], [10, 10], 0) == set()


@pytest.mark.parametrize(("change", "expected"), [(4.0, {"t0", "t1", "y"}), (0.5, {"t0", "y"})])
def test_a_slow_one_between_two_fast_ones_stays_where_its_neighbours_would_pay(change: float, expected: set[str]) -> None:
    """Left out it saves 2, and its neighbours must change the layout of one tensor each."""
    assert chosen(chain(3), [2, 12, 2], [20, 10, 20], change) == expected


def test_a_group_that_loses_goes_though_each_of_it_would_stay_for_the_others() -> None:
    assert chosen(chain(2), [8, 8], [10, 10], 4) == set(), "24 against 20, where leaving one alone would cost 2 more"
    assert chosen(chain(3), [8, 8, 8], [10, 10, 10], 4) == set()
    assert chosen(chain(5), [8] * 5, [10] * 5, 4) == {"t0", "t1", "t2", "t3", "y"}, "48 against 50"


def test_a_losing_end_goes_and_the_rest_stays() -> None:
    assert chosen(chain(4), [2, 2, 2, 30], [10, 10, 10, 10], 1) == {"t0", "t1", "t2"}


def test_groups_are_judged_apart() -> None:
    body = f"a = Conv<{PADS}>(x, w0)  b = Conv<{PADS}>(a, w1)  s = Sin(b)  c = Conv<{PADS}>(s, w2)  y = Conv<{PADS}>(c, w3)"
    assert chosen(body, [9, 9, 2, 2], [10, 10, 10, 10], 4) == {"c", "y"}


def test_nothing_to_choose_from() -> None:
    planned = plan(net("y = Sin(x)"))
    assert select(Borders(planned.regions, planned.shapes), planned.pricing) == set()


BRANCHES = f"""a = Conv<{PADS}>(x, w0)  b = Conv<{PADS}>(a, w1)  p = MaxPool<kernel_shape=[3,3], {PADS}>(a)  c = Conv<{PADS}>(p, w2)
    s = Sin(c)  d = Conv<{PADS}>(b, w3)  e = Add(d, c)  f = Conv<{PADS}>(s, w4)  y = Conv<{PADS}>(e, w5)"""


def random_choice(seed: int) -> tuple[float, float]:
    """What the choice costs with random prices, and the least that any subset costs."""
    rng = np.random.default_rng(seed)
    borders, by_name = borders_of(plan(net(BRANCHES, "float[n,8,h,w] y, float[n,8,h,w] f")))
    ours, vendor = ({n: float(rng.uniform(1, 12)) for n in by_name} for _ in range(2))
    prices: Any = Prices(ours, float(rng.uniform(0, 4)), vendor)
    made = select(borders, prices)
    total = prices.total(borders, made)
    assert total <= prices.total(borders, set(borders.regions)) and total <= prices.total(borders, set())
    assert all(total <= prices.total(borders, made - {r}) + 1e-9 for r in made), "one less is no better"
    assert made == select(borders, prices), "the same again"
    every = [set(some) for size in range(len(by_name) + 1) for some in itertools.combinations(borders.regions, size)]
    return total, min(prices.total(borders, some) for some in every)


def test_never_worse_than_all_or_nothing_and_seldom_than_the_best() -> None:
    """The choice is greedy, and begins with all: with random prices it misses the best of all subsets now and then."""
    lost = [total / best - 1 for total, best in map(random_choice, range(40))]
    assert sum(loss < 1e-9 for loss in lost) >= 20 and float(np.mean(lost)) < 0.07 and max(lost) < 0.45, sorted(lost)


# ---- in a plan


def test_what_does_not_pay_is_refused_with_the_reason_and_borders_follow() -> None:
    """A convolution of three channels from one pixel costs more as a node of ours than what it saves; taken all the same, it is priced."""
    model = net(chain(3), inputs="float[1,8,256,256] x", outputs="float[1,8,256,256] y")
    everything = plan(model)
    assert [p.region.output.name for p in everything.plan.regions] == ["t0", "t1", "y"] and everything.plan.refusals == ()
    assert [(len(p.nhwc_inputs), p.nhwc_output, p.nchw_output) for p in everything.plan.regions] == [(0, True, False), (1, True, False), (1, False, True)]
    assert all(p.ours_us > 0 and p.vendor_us > 0 and p.replaced for p in everything.plan.regions)
    slow: Any = Prices(dict.fromkeys(("t0", "t1", "y"), 5.0), 1.0, {"t0": 50.0, "t1": 50.0, "y": 1.0})
    chosen = plan_regions(everything.view, everything.shapes, "match", slow)
    assert [p.region.output.name for p in chosen.regions] == ["t0", "t1"]
    assert [(len(p.nhwc_inputs), p.nhwc_output, p.nchw_output, p.ours_us) for p in chosen.regions] == [(0, True, False, 6.0), (1, False, True, 6.0)]
    (refusal,) = chosen.refusals
    assert (refusal.rule, refusal.reason, refusal.nodes) == ("conv regions", f"conv: {NOT_WORTH_IT}", ("Conv(y)",))


def test_excluded_and_only() -> None:
    planned = plan(net(chain(3)))
    parts = (planned.view, planned.shapes, "match", planned.pricing)
    without = plan_regions(*parts, excluded={"Conv(t1)": "its results differ"}, take_all=True)
    assert [p.region.label for p in without.regions] == ["Conv(t0)", "Conv(y)"]
    assert [(r.reason, r.nodes) for r in without.refusals] == [("its results differ", ("Conv(t1)",))]
    costly: Any = Prices(dict.fromkeys(("t0", "t1", "y"), 99.0), 1.0, dict.fromkeys(("t0", "t1", "y"), 1.0))
    only = plan_regions(*parts[:3], costly, only={"Conv(t1)"})
    assert [p.region.label for p in only.regions] == ["Conv(t1)"], "whatever it is expected to gain"


def test_large_batches_are_left_to_the_vendor_where_it_is_faster() -> None:
    """The price list decides for real sizes: a network of large layers is no gain, the same at batch 1 is."""
    wide = {f"w{i}": weights(256, 256, 3, 3, seed=i) for i in range(3)}
    body = "  ".join(f"{b} = Conv<{PADS}>({a}, w{i})" for i, (a, b) in enumerate(itertools.pairwise("xtsy")))
    for batch, regions in ((1, 3), (64, 0)):
        dims = f"[{batch},256,56,56]" if batch == 64 else f"[{batch},256,14,14]"
        made = plan(net(body, f"float{dims} y", f"float{dims} x", wide), take_all=False)
        assert len(made.regions) == regions and made.reasons.count(NOT_WORTH_IT) == 3 - regions
