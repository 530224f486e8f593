"""Small models with dynamic dims, as text, that exercise shape arithmetic the way exporters write it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper, parser

# name -> (text, constant weights by name: shape, input shapes at several sizes of the named dims)
CNN = """<ir_version: 8, opset_import: ["": 17]>
cnn (float[N,3,H,W] x) => (float[N,K] y) {
  c1 = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x, w1)
  r1 = Relu(c1)
  p1 = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(r1)
  c2 = Conv<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(p1, w2)
  c3 = Conv<kernel_shape=[5,5], strides=[2,2], auto_pad="SAME_LOWER">(p1, w3)
  cat = Concat<axis=1>(c2, c3)
  p2 = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1, pads=[1,0,0,1], count_include_pad=1>(cat)
  c4 = Conv<kernel_shape=[3,3], dilations=[2,2], pads=[2,2,2,2], group=4>(p2, w4)
  v = Conv<kernel_shape=[2,2], auto_pad="VALID">(c4, w5)
  up = ConvTranspose<kernel_shape=[4,4], strides=[2,2], pads=[1,1,1,1], output_padding=[1,0]>(v, w6)
  same = ConvTranspose<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(v, w7)
  l = LpPool<kernel_shape=[3,3], strides=[1,2], pads=[0,1,0,1]>(up)
  g = GlobalAveragePool(same)
  s = SpaceToDepth<blocksize=1>(g)
  f = Flatten<axis=1>(s)
  y = Gemm<transB=1>(f, w8, b8)
}"""
CNN_WEIGHTS: dict[str, tuple[int, ...]] = {"w1": (8, 3, 3, 3), "w2": (6, 8, 3, 3), "w3": (2, 8, 5, 5), "w4": (8, 2, 3, 3), "w5": (4, 8, 2, 2)}
CNN_WEIGHTS |= {"w6": (4, 4, 4, 4), "w7": (4, 6, 3, 3), "w8": (10, 6), "b8": (10,)}

TRANSFORMER = """<ir_version: 8, opset_import: ["": 17]>
transformer (int64[B,S] ids, int64[B,S] mask) => (float[B,S,32] y, float[B,1,32] last) {
  shape = Shape(ids)
  zero = Constant<value_int=0>()
  one = Constant<value_int=1>()
  b = Gather(shape, zero)
  s = Gather(shape, one)
  table = Gather(emb, ids)
  start = Constant<value_int=0>()
  step = Constant<value_int=1>()
  positions = Range(start, s, step)
  pos = Gather(posemb, positions)
  x0 = Add(table, pos)
  x, mean, dev = LayerNormalization(x0, gamma, beta)
  q = MatMul(x, wq)
  axes0 = Constant<value_ints=[0]>()
  bu = Unsqueeze(b, axes0)
  su = Unsqueeze(s, axes0)
  heads = Constant<value_ints=[4]>()
  minus = Constant<value_ints=[-1]>()
  split = Concat<axis=0>(bu, su, heads, minus)
  qh = Reshape(q, split)
  qt = Transpose<perm=[0,2,1,3]>(qh)
  kt = Transpose<perm=[0,2,3,1]>(qh)
  prod = MatMul(qt, kt)
  mf = Cast<to=1>(mask)
  ax12 = Constant<value_ints=[1,2]>()
  mu = Unsqueeze(mf, ax12)
  scores = Add(prod, mu)
  full = Concat<axis=0>(bu, heads, su, su)
  causal = ConstantOfShape<value = float[1] {1.0}>(full)
  tri = Trilu(causal)
  masked = Mul(scores, tri)
  att = Softmax<axis=-1>(masked)
  ctx = MatMul(att, qt)
  back = Transpose<perm=[0,2,1,3]>(ctx)
  eight = Constant<value_int=8>()
  four = Constant<value_int=4>()
  width = Mul(eight, four)
  wu = Unsqueeze(width, axes0)
  merged_shape = Concat<axis=0>(bu, su, wu)
  merged = Reshape(back, merged_shape)
  total = ReduceProd<keepdims=1>(shape)
  flat_shape = Concat<axis=0>(total, wu)
  flat = Reshape(merged, flat_shape)
  ff = Gemm(flat, wq)
  un = Reshape(ff, merged_shape)
  y = Add(un, x)
  m1 = Constant<value_ints=[-1]>()
  big = Constant<value_ints=[9223372036854775807]>()
  ax1 = Constant<value_ints=[1]>()
  last = Slice(y, m1, big, ax1)
  most = Slice(y, axes0, m1, ax1)
  halves_a, halves_b = Split<axis=2>(y)
  k5 = Constant<value_ints=[1]>()
  tv, ti = TopK<axis=1>(y, k5)
  nz = NonZero(mask)
  red = ReduceMean<axes=[1], keepdims=0>(y)
  arg = ArgMax<axis=2, keepdims=0>(y)
  cs = CumSum(y, one)
  dim_m = Sub(s, one)
  clamp = Max(dim_m, zero)
  ru = Unsqueeze(clamp, axes0)
  shifted = Slice(y, ru, big, ax1)
  e = Einsum<equation="bsd,btd->bst">(y, y)
  oh = OneHot<axis=-1>(ids, eight, ohv)
  rep = Concat<axis=0>(axes_one, k5, heads)
  tiled = Tile(y, rep)
  exp_shape = Concat<axis=0>(heads, bu, su, wu)
  expanded = Expand(y, exp_shape)
  gnd = GatherND(y, gidx)
  sc = ScatterND(y, gidx2, upd)
}"""
TRANSFORMER_WEIGHTS = {"emb": (50, 32), "posemb": (64, 32), "gamma": (32,), "beta": (32,), "wq": (32, 32)}

FPN = """<ir_version: 8, opset_import: ["": 17]>
fpn (float[N,3,H,W] x) => (float[1,1,1,1] y) {
  c2 = Conv<kernel_shape=[3,3], strides=[4,4], pads=[1,1,1,1]>(x, w1)
  c3 = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(c2, w2)
  c4 = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(c3, w2)
  up2 = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(c4, , scales2)
  up15 = Resize<mode="linear">(c4, , scales15)
  s3 = Shape(c3)
  i2 = Constant<value_ints=[2]>()
  i4 = Constant<value_ints=[4]>()
  i0 = Constant<value_ints=[0]>()
  hw = Slice(s3, i2, i4, i0)
  s4 = Shape<start=0, end=2>(c4)
  sizes = Concat<axis=0>(s4, hw)
  up = Resize<mode="nearest">(c4, , , sizes)
  m3 = Add(up, c3)
  sz = Shape(c2)
  h_index = Constant<value_int=2>()
  h = Gather(sz, h_index)
  hf = Cast<to=1>(h)
  two = Constant<value_float=2.0>()
  hd = Div(hf, two)
  hfl = Floor(hd)
  hcl = Ceil(hd)
  hup = Mul(hf, two)
  hi = Cast<to=7>(hfl)
  hc = Cast<to=7>(hcl)
  hu = Cast<to=7>(hup)
  hui = Unsqueeze(hi, i0)
  huc = Unsqueeze(hc, i0)
  huu = Unsqueeze(hu, i0)
  sz2 = Concat<axis=0>(s4, hui, huc)
  third = Resize<mode="nearest">(c2, , , sz2)
  sz3 = Concat<axis=0>(s4, huu, hui)
  fourth = Resize<mode="nearest">(c2, , , sz3)
  pads = Constant<value_ints=[0,0,1,-1,0,0,2,1]>()
  padded = Pad(m3, pads)
  focus_a = Slice(x, i0, big, i2, i2)
  focus = Slice(focus_a, one1, big, three, i2)
  crop = Slice(x, two2, minus2, axes23)
  rev = Slice(x, minus1, low, three, minus1)
  g = GlobalMaxPool(padded)
  y = ReduceSum(g)
}"""
FPN_WEIGHTS = {"w1": (4, 3, 3, 3), "w2": (4, 4, 3, 3)}

ARITHMETIC = """<ir_version: 8, opset_import: ["": 13]>
arithmetic (float[N,C,H,W] x) => (float[1,1,1,1] y) {
  sh = Shape(x)
  i2 = Constant<value_int=2>()
  i0 = Constant<value_ints=[0]>()
  h = Gather(sh, i2)
  seven = Constant<value_int=7>()
  one = Constant<value_int=1>()
  a1 = Add(h, seven)
  a2 = Sub(a1, one)
  q = Div(a2, seven)
  padded = Mul(q, seven)
  extra = Sub(padded, h)
  m = Mod(h, seven)
  lo = Min(h, seven)
  hi = Max(h, seven)
  small = Sub(h, seven)
  tq = Div(small, i2)
  neg = Neg(h)
  ab = Abs(neg)
  zero = Constant<value_int=0>()
  gt = Greater(padded, neg)
  w = Where(gt, padded, h)
  eq = Equal(m, m)
  noteq = Not(eq)
  lt = Less(h, zero)
  both = And(eq, gt)
  eu = Unsqueeze(extra, i0)
  zeros = Constant<value_ints=[0,0,0,0,0,0]>()
  zero1 = Constant<value_ints=[0]>()
  pads = Concat<axis=0>(zeros, eu, zero1)
  xp = Pad(x, pads)
  shp = Shape(xp)
  n1 = Constant<value_ints=[-1]>()
  qu = Unsqueeze(q, i0)
  sevenu = Unsqueeze(seven, i0)
  i01 = Constant<value_ints=[0,1]>()
  nc = Gather(sh, i01)
  win = Concat<axis=0>(nc, qu, sevenu, n1)
  windows = Reshape(xp, win)
  t = Transpose<perm=[0,2,1,3,4]>(windows)
  flat = Flatten<axis=2>(t)
  hu = Unsqueeze(h, i0)
  ax2 = Constant<value_ints=[2]>()
  cropped = Slice(xp, i0, hu, ax2)
  size = Size(x)
  total = Unsqueeze(size, i0)
  line = Reshape(x, total)
  pad6 = Constant<value_ints=[1,1]>()
  cos = ConstantOfShape<value = int64[1] {0}>(ax2)
  pl = Concat<axis=0>(pad6, cos, cos, cos)
  y = ReduceMax(cropped)
}"""

CONTROL = """<ir_version: 8, opset_import: ["": 17]>
control (float[N,C] x, bool flag, int64 count) => (float[M,C] y) {
  yes = Constant<value = bool {1}>()
  sum0 = ReduceSum<keepdims=0>(x)
  a = If(flag) <
    then_branch = t () => (float[P,Q] ta) { ta = Concat<axis=0>(x, x) },
    else_branch = e () => (float[P,Q] ea) { ea = Relu(x) }
  >
  same = If(flag) <
    then_branch = t2 () => (float[P,Q] tb) { tb = Neg(x) },
    else_branch = e2 () => (float[P,Q] eb) { eb = Relu(x) }
  >
  fixed = If(yes) <
    then_branch = t3 () => (float[P,Q] tc) { tc = Concat<axis=1>(x, x) },
    else_branch = e3 () => (float[P,Q] ec) { ec = Relu(x) }
  >
  grown, kept, stack, ragged = Loop(count, yes, x, x) <
    body = l (int64 i, bool c, float[?,?] g, float[?,?] k) => (bool c2, float[?,?] g2, float[?,?] k2, float[?,?] s2, float[?,?] r2) {
      c2 = Identity(c)
      g2 = Concat<axis=0>(g, x)
      k2 = Add(k, x)
      s2 = Relu(k2)
      r2 = Neg(x)
    }
  >
  state, outs = Scan<num_scan_inputs=1, scan_output_axes=[1], body = sb (float[?] st, float[?] el) => (float[?] st2, float[?] o) {
      st2 = Add(st, el)
      o = Concat<axis=0>(st2, el)
  }>(init, x)
  y = Neg(kept)
}"""


def with_constants(text: str, arrays: dict[str, np.ndarray]) -> ModelProto:
    """The model of ``text`` with initializers ``arrays``."""
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    onnx.checker.check_model(model)
    return model


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded float32 weights of modest size."""
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal(shape) / max(1, np.prod(shape[1:])) ** 0.5).astype(np.float32) for name, shape in shapes.items()}


def cnn() -> ModelProto:
    """Strided, dilated, grouped and transposed convolutions; ceil_mode and SAME."""
    return with_constants(CNN, random_weights(CNN_WEIGHTS))


def transformer() -> ModelProto:
    """One attention block with the Shape-Gather-Concat-Reshape chains of an exporter, and the ops around it."""
    ints = {"axes_one": [1], "gidx": [[0, 0]], "gidx2": [[0, 0, 0]]}
    arrays = {k: np.array(v, np.int64) for k, v in ints.items()} | {"ohv": np.array([0, 1], np.float32), "upd": np.array([3], np.float32)}
    return with_constants(TRANSFORMER, random_weights(TRANSFORMER_WEIGHTS) | arrays)


def fpn() -> ModelProto:
    """Resize by scales and by computed sizes, sizes through floats, slices with steps and negative ends."""
    ints = {"big": [2**63 - 1], "one1": [1], "three": [3], "two2": [1, 1], "minus2": [-1, -2], "axes23": [2, 3], "minus1": [-1], "low": [-(2**63) + 1]}
    arrays = {k: np.array(v, np.int64) for k, v in ints.items()}
    arrays |= {"scales2": np.array([1, 1, 2, 2], np.float32), "scales15": np.array([1, 1, 1.5, 0.5], np.float32)}
    return with_constants(FPN, random_weights(FPN_WEIGHTS) | arrays)


def arithmetic() -> ModelProto:
    """Integer arithmetic on sizes: padding to a multiple, windows, crops, comparisons."""
    return with_constants(ARITHMETIC, {})


def control() -> ModelProto:
    """If, Loop and Scan whose bodies read outer tensors."""
    return with_constants(CONTROL, {"init": np.zeros(5, np.float32)})
