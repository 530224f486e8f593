// Every template once, for the editor and for CI. NVRTC and nvcc both take it.
#include "concat.cuh"
#include "conv_depthwise.cuh"
#include "conv_direct.cuh"
#include "conv_igemm.cuh"
#include "global_pool.cuh"
#include "layout.cuh"
#include "pointwise.cuh"
#include "pool.cuh"
#include "splitk_reduce.cuh"

namespace tilewright {

#define TILEWRIGHT_KERNEL(NAME, ...)                                                                                 \
  using Kernel_##NAME = __VA_ARGS__;                                                                                 \
  extern "C" __global__ void __launch_bounds__(Kernel_##NAME::THREADS, Kernel_##NAME::MIN_BLOCKS)                    \
      NAME(const __grid_constant__ Kernel_##NAME::Args args) {                                                       \
    Kernel_##NAME::run(args);                                                                                        \
  }

using Usual = Epilogue<Bias, Relu, AddFull<0>>;

TILEWRIGHT_KERNEL(conv_igemm_f16, ConvIgemm<F16, 128, 128, 64, 4, 2, 3, 8, false, 1, Usual>)
TILEWRIGHT_KERNEL(conv_igemm_tf32, ConvIgemm<TF32, 64, 64, 32, 2, 2, 4, 4, true, 1, Usual>)
TILEWRIGHT_KERNEL(conv_igemm_split, ConvIgemm<F16, 64, 64, 64, 2, 2, 4, 8, false, 4, Epilogue<>>)
TILEWRIGHT_KERNEL(splitk_reduce, SplitkReduce<F16, 4, 8, 128, Usual>)
TILEWRIGHT_KERNEL(conv_depthwise, ConvDepthwise<F16, 3, 3, 1, 1, 2, 8, 128, Epilogue<Bias, Silu>>)
TILEWRIGHT_KERNEL(conv_direct, ConvDirect<F16, 8, 128, Epilogue<Bias, HardSwish>>)
TILEWRIGHT_KERNEL(pool, Pool<F16, POOL_MAX, 3, 3, 8, 128, Epilogue<>>)
TILEWRIGHT_KERNEL(global_pool, GlobalPool<F16, false, 8, 256, Epilogue<>>)
TILEWRIGHT_KERNEL(pointwise, Pointwise<TF32, 8, 4, 256, Epilogue<ScaleVec<0>, ShiftVec<1>, Relu, MulGate<2>>>)
TILEWRIGHT_KERNEL(concat, Concat<F16, 4, 8, 256, Epilogue<ScaleVec<0>, ShiftVec<1>, Relu>>)
TILEWRIGHT_KERNEL(layout_to_nhwc, Layout<F16, TF32, true, 64>)
TILEWRIGHT_KERNEL(layout_to_nchw, Layout<F16, TF32, false, 0>)

}  // namespace tilewright
