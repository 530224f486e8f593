// long because the loads, the product and the store share one set of constants.
//
// Convolution as an implicit matrix product on tensor cores: rows are output pixels, columns are the output channels of a group,
// the reduction runs over the filter's taps and, fastest, the input channels of the group.
//
// x is NHWC, the weights are [groups * cout_g][kh * kw * cin_g] in the element type. A block computes BLOCK_M pixels of BLOCK_N channels;
// tiles of BLOCK_K of both operands come through STAGES buffers of shared memory.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "mma.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32
///   BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, STAGES
///   VEC         elements that one copy of x and of the weights moves; it divides cin_g, x_pitch and the address of x
///   POINTWISE   1 x 1 filter, stride 1, no padding, one group: x is a plain matrix
///   SPLIT_K     parts of the reduction; above 1 there is one group, the parts go to `workspace` as fp32 [SPLIT_K][rows][ws_pitch] with
///               ws_pitch a multiple of 4, and splitk_reduce does the rest
///   EPILOGUE    Epilogue<...>
/// Grid: (row tiles * column tiles of a group, groups, SPLIT_K). Limits: kh + kw <= 32; batch * p * q, and the elements of x and of the
/// weights divided by VEC, stay below 2^31.
template <class TYPE, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M, int WARPS_N, int STAGES, int VEC, bool POINTWISE, int SPLIT_K,
          class EPILOGUE>
struct ConvIgemm {
  struct Args {
    const void* x;
    const void* weight;
    const void* bias;
    void* y;
    void* workspace;
    const void* e0;
    const void* e1;
    const void* e2;
    int batch;
    int h;
    int w;
    int x_pitch;
    int p;
    int q;
    int y_pitch;
    int y_offset;
    int y_zero_to;
    int groups;
    int cin_g;
    int cout_g;
    int kh;
    int kw;
    int stride_h;
    int stride_w;
    int pad_h;
    int pad_w;
    int dil_h;
    int dil_w;
    int e0_pitch;
    int e1_pitch;
    int e2_pitch;
    int ws_pitch;
  };

  using Storage = typename TYPE::Storage;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = BLOCK_M / WARPS_M;
  static constexpr int WARP_N = BLOCK_N / WARPS_N;
  static constexpr int FRAGMENTS_M = WARP_M / 16;
  static constexpr int FRAGMENTS_N = WARP_N / 8;
  static constexpr int ROW_BYTES = BLOCK_K * static_cast<int>(sizeof(Storage));
  static constexpr int STEPS = ROW_BYTES / 32;  // products of one fragment depth in a tile
  static constexpr int STAGE_BYTES = (BLOCK_M + BLOCK_N) * ROW_BYTES;
  static constexpr int SMEM_BYTES = STAGES * STAGE_BYTES;
  static constexpr int ACCUMULATORS = WARP_M * WARP_N / 32;

  static constexpr int COPY_BYTES = VEC * static_cast<int>(sizeof(Storage));
  static constexpr int COPY_COLUMNS = BLOCK_K / VEC;
  static constexpr int COPY_ROWS = THREADS / COPY_COLUMNS;  // rows of a tile that one copy of every thread covers
  static constexpr int COPIES_A = BLOCK_M / COPY_ROWS;
  static constexpr int COPIES_B = BLOCK_N / COPY_ROWS;

  // Blocks that registers must allow on a multiprocessor: 128 of them a thread where few accumulators are held, else 168, or as many as there
  // are where accumulators or copies are many.
  static constexpr int REGISTERS = COPY_BYTES < 16 || ACCUMULATORS > 32 ? 255 : ACCUMULATORS <= 16 || THREADS >= 256 ? 128 : 168;
  static constexpr int MIN_BLOCKS = 65536 / (THREADS * REGISTERS) > 1 ? 65536 / (THREADS * REGISTERS) : 1;

  static constexpr int UNIT = TYPE::UNIT;
  static constexpr int GROUP_COLUMNS = 4 * UNIT;  // columns of which each lane of a quad gets one unit
  static constexpr int COLUMN_GROUPS = WARP_N / GROUP_COLUMNS;
  static constexpr int THREAD_ROWS = 2 * FRAGMENTS_M;
  static constexpr int RASTER_N = 8;  // column tiles that are computed side by side, so that a row tile is read from L2

  static_assert(BLOCK_M % (16 * WARPS_M) == 0 && BLOCK_N % (32 * WARPS_N) == 0, "a warp computes multiples of 16 x 32");
  static_assert(ROW_BYTES == 64 || ROW_BYTES == 128, "a tile's row is 64 or 128 bytes");
  static_assert(STAGES >= 2 && STAGES <= 8, "2 to 8 stages");
  static_assert(COPY_BYTES == 4 || COPY_BYTES == 8 || COPY_BYTES == 16, "a copy moves 4, 8 or 16 bytes");
  static_assert(COPY_COLUMNS <= 32 && THREADS % COPY_COLUMNS == 0, "copies cover whole rows");
  static_assert((THREADS & (THREADS - 1)) == 0, "a power of two, so that a thread's rows differ in bits of their own");
  static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "copies cover whole tiles");
  static_assert(COPY_BYTES == 16 || ACCUMULATORS <= 64, "small copies take registers that the largest warp tiles do not leave");
  static_assert(COPIES_A <= 32 && COPIES_B <= 32, "one bit each");
  static_assert(SPLIT_K >= 1, "1 means no split");

  /// Where chunk `chunk` (16 bytes) of row `row` of a tile lies in the row: eight rows that are read together meet every bank once.
  static __device__ __forceinline__ int swizzle(int row, int chunk) { return ROW_BYTES == 128 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3); }

  /// Where a thread's first copy goes in a tile.
  static __device__ __forceinline__ u32 first_target(int thread) {
    const int row = thread / COPY_COLUMNS, byte = thread % COPY_COLUMNS * COPY_BYTES;
    return row * ROW_BYTES + swizzle(row, byte / 16) * 16 + byte % 16;
  }

  /// Where its copy i goes, COPY_ROWS rows further on each time; `first` is the address of the first.
  static __device__ __forceinline__ u32 copy_target(u32 first, int i) {
    return (first ^ swizzle(i * COPY_ROWS, 0) * 16) + i * (COPY_ROWS * ROW_BYTES);
  }

  /// One thread's share of the weight tiles. Positions count copies of VEC elements, which 32 bits hold.
  class Weights {
   public:
    __device__ __forceinline__ Weights(const Args& args, int thread, int group, int first_column, int first_k, int depth)
        : weight_(static_cast<const unsigned char*>(args.weight)),
          k_(first_k + thread % COPY_COLUMNS * VEC),
          depth_(depth),
          target_(BLOCK_M * ROW_BYTES + first_target(thread)) {
      const int column = first_column + thread / COPY_COLUMNS;
      position_ = (group * args.cout_g + column) * (depth / VEC) + k_ / VEC;
      valid_ = 0;
#pragma unroll
      for (int i = 0; i < COPIES_B; ++i) valid_ |= static_cast<u32>(column + i * COPY_ROWS < args.cout_g) << i;
    }

    /// Starts the copies of a tile and moves on to the next.
    __device__ __forceinline__ void copy(u32 stage) {
      const u32 valid = k_ < depth_ ? valid_ : 0;
      const int step = COPY_ROWS * (depth_ / VEC);
#pragma unroll
      for (int i = 0; i < COPIES_B; ++i) {
        copy_async<COPY_BYTES>(copy_target(stage + target_, i), weight_ + static_cast<i64>(position_ + i * step) * COPY_BYTES, valid >> i & 1);
      }
      position_ += COPY_COLUMNS;
      k_ += BLOCK_K;
    }

   private:
    const unsigned char* weight_;
    int position_, k_, depth_;
    u32 target_, valid_;
  };

  /// One thread's share of the tiles of x where x is a matrix.
  class MatrixRows {
   public:
    __device__ __forceinline__ MatrixRows(const Args& args, int thread, int, int first_row, int rows, int first_k, int depth)
        : x_(static_cast<const unsigned char*>(args.x)),
          k_(first_k + thread % COPY_COLUMNS * VEC),
          depth_(depth),
          step_(COPY_ROWS * (args.x_pitch / VEC)),
          target_(first_target(thread)) {
      const int row = first_row + thread / COPY_COLUMNS;
      position_ = row * (args.x_pitch / VEC) + k_ / VEC;
      valid_ = 0;
#pragma unroll
      for (int i = 0; i < COPIES_A; ++i) valid_ |= static_cast<u32>(row + i * COPY_ROWS < rows) << i;
    }

    /// Starts the copies of a tile and moves on to the next.
    __device__ __forceinline__ void copy(u32 stage) {
      const u32 valid = k_ < depth_ ? valid_ : 0;
#pragma unroll
      for (int i = 0; i < COPIES_A; ++i) {
        copy_async<COPY_BYTES>(copy_target(stage + target_, i), x_ + static_cast<i64>(position_ + i * step_) * COPY_BYTES, valid >> i & 1);
      }
      position_ += COPY_COLUMNS;
      k_ += BLOCK_K;
    }

   private:
    const unsigned char* x_;
    int position_, k_, depth_, step_;
    u32 target_, valid_;
  };

  /// One thread's share of the tiles of x: the windows of COPIES_A pixels, and the tap and channel at which the tile stands.
  class Windows {
   public:
    __device__ __forceinline__ Windows(const Args& args, int thread, int group, int first_row, int rows, int first_k, int depth)
        : args_(args), k_(first_k + thread % COPY_COLUMNS * VEC), depth_(depth), target_(first_target(thread)) {
      // A warp's lanes copy LANE_ROWS rows at a time, COPY_COLUMNS of them the same one: each lane works out one row, then they exchange.
      constexpr int LANE_ROWS = 32 / COPY_COLUMNS;
      const int pitch = args.x_pitch / VEC, lane = thread % 32;
      const FastDiv by_q(args.q), by_p(args.p);
#pragma unroll
      for (int first = 0; first < COPIES_A; first += COPY_COLUMNS) {
        const int row = first_row + thread / 32 * LANE_ROWS + lane % LANE_ROWS + (first + lane / LANE_ROWS) * COPY_ROWS;
        int y, x;
        const int n = by_p.divide(by_q.divide(row < rows ? row : 0, x), y);
        y = y * args.stride_h - args.pad_h;
        x = x * args.stride_w - args.pad_w;
        const int window = ((n * args.h + y) * args.w + x) * pitch + group * args.cin_g / VEC;
        u32 taps = taps_inside(x, args.w, args.kw, args.dil_w) | taps_inside(y, args.h, args.kh, args.dil_h) << args.kw;
        if (row >= rows) taps = 0;
#pragma unroll
        for (int i = first; i < COPIES_A && i < first + COPY_COLUMNS; ++i) {
          window_[i] = __shfl_sync(0xffffffffu, window, (i - first) * LANE_ROWS + lane / COPY_COLUMNS);
          taps_[i] = __shfl_sync(0xffffffffu, taps, (i - first) * LANE_ROWS + lane / COPY_COLUMNS);
        }
      }
      channel_ = k_;
      column_bit_ = 1;
      row_bit_ = 1u << args.kw;
      position_ = 0;
      if (SPLIT_K > 1) {
        int column;
        const int tap_row = FastDiv(args.kw).divide(FastDiv(args.cin_g).divide(k_, channel_), column);
        column_bit_ <<= column;
        row_bit_ = tap_row < args.kh ? row_bit_ << tap_row : 0;
        position_ = (tap_row * args.dil_h * args.w + column * args.dil_w) * pitch;
      }
      position_ += channel_ / VEC;
      next_taps();
    }

    /// Starts the copies of a tile and moves on to the next.
    __device__ __forceinline__ void copy(u32 stage) {
      const auto* x = static_cast<const unsigned char*>(args_.x);
      const bool inside = k_ < depth_;
      const u32 tap = column_bit_ | row_bit_;
#pragma unroll
      for (int i = 0; i < COPIES_A; ++i) {
        copy_async<COPY_BYTES>(copy_target(stage + target_, i), x + static_cast<i64>(window_[i] + position_) * COPY_BYTES,
                               inside && (taps_[i] & tap) == tap);
      }
      k_ += BLOCK_K;
      channel_ += BLOCK_K;
      position_ += COPY_COLUMNS;
      next_taps();
    }

   private:
    /// Bit t says whether tap t of a window that starts at `first` lies in [0, size).
    static __device__ __forceinline__ u32 taps_inside(int first, int size, int taps, int dilation) {
      int begin = max(0, -first), end = max(0, size - first);
      if (dilation > 1) {
        const FastDiv by_dilation(dilation);
        begin = by_dilation(begin + dilation - 1);
        end = by_dilation(end + dilation - 1);
      }
      return low_bits(min(end, taps)) & ~low_bits(min(begin, taps));
    }

    /// `count` ones, 0 <= count <= 31.
    static __device__ __forceinline__ u32 low_bits(int count) { return (1u << count) - 1; }

    /// Goes from channels beyond the last to later taps.
    __device__ __forceinline__ void next_taps() {
      while (channel_ >= args_.cin_g) {
        channel_ -= args_.cin_g;
        column_bit_ <<= 1;
        position_ += (args_.dil_w * args_.x_pitch - args_.cin_g) / VEC;
        if (column_bit_ == 1u << args_.kw) {
          column_bit_ = 1;
          row_bit_ <<= 1;
          position_ += (args_.dil_h * args_.w - args_.kw * args_.dil_w) * (args_.x_pitch / VEC);
        }
      }
    }

    const Args& args_;
    int window_[COPIES_A];  // the window's first tap, in copies from x on
    u32 taps_[COPIES_A];    // which columns (low bits) and rows (above) of the filter lie in the image
    int k_, depth_;
    u32 target_;
    int channel_;  // the tile's channel and tap of this thread
    u32 column_bit_, row_bit_;
    int position_;  // the same relative to the window's first tap, in copies
  };

  using Pixels = typename Select<POINTWISE, MatrixRows, Windows>::Type;

  /// The operands of one step of a warp.
  struct Fragments {
    u32 a[FRAGMENTS_M][4];
    u32 b[FRAGMENTS_N][2];

    __device__ __forceinline__ void load(u32 a_address, u32 b_address) {
#pragma unroll
      for (int m = 0; m < FRAGMENTS_M; ++m) ldmatrix_x4(a_address + m * (16 * ROW_BYTES), a[m][0], a[m][1], a[m][2], a[m][3]);
#pragma unroll
      for (int n = 0; n < FRAGMENTS_N; n += 2) ldmatrix_x4(b_address + n * (8 * ROW_BYTES), b[n][0], b[n][1], b[n + 1][0], b[n + 1][1]);
    }

    __device__ __forceinline__ void round() {
#pragma unroll
      for (int m = 0; m < FRAGMENTS_M; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) Mma<TYPE>::round(a[m][i]);
      }
#pragma unroll
      for (int n = 0; n < FRAGMENTS_N; ++n) {
        Mma<TYPE>::round(b[n][0]);
        Mma<TYPE>::round(b[n][1]);
      }
    }
  };

  using Accumulators = float[FRAGMENTS_M][FRAGMENTS_N][4];

  /// The first unit of GROUP_COLUMNS columns that a lane holds after gather().
  static __device__ __forceinline__ int unit_column(int lane) {
    const int t = lane % 4;
    return UNIT == 8 ? 8 * t : 8 * (t & 1) + 4 * (t >> 1);
  }

  /// Exchanges accumulators in a quad so that each lane gets UNIT neighbours of one row: row half * 8 + lane / 4 of fragment m.
  static __device__ __forceinline__ void gather(const Accumulators& sums, int m, int half, int column_group, int lane, float (&values)[UNIT]) {
    constexpr int PAIRS = UNIT / 2;
    float pairs[PAIRS][2];
#pragma unroll
    for (int f = 0; f < PAIRS; ++f) {
      pairs[f][0] = sums[m][column_group * PAIRS + f][2 * half];
      pairs[f][1] = sums[m][column_group * PAIRS + f][2 * half + 1];
    }
#pragma unroll
    for (int bit = 1; bit < PAIRS; bit *= 2) {
      const bool upper = lane & bit;
#pragma unroll
      for (int f = 0; f < PAIRS; ++f) {
        if (f & bit) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float other = __shfl_xor_sync(0xffffffffu, upper ? pairs[f][i] : pairs[f + bit][i], bit);
          pairs[f][i] = upper ? other : pairs[f][i];
          pairs[f + bit][i] = upper ? pairs[f + bit][i] : other;
        }
      }
    }
#pragma unroll
    for (int f = 0; f < PAIRS; ++f) {
      values[2 * f] = pairs[f][0];
      values[2 * f + 1] = pairs[f][1];
    }
  }

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int thread = threadIdx.x % THREADS, warp = thread / 32, lane = thread % 32;
    const int rows = args.batch * args.p * args.q;
    const int depth = args.kh * args.kw * args.cin_g;
    const int group = blockIdx.y;
    const int row_tiles = cdiv(rows, BLOCK_M), column_tiles = cdiv(args.cout_g, BLOCK_N);

    // Column tiles side by side in bands of RASTER_N, row tiles one after the other.
    int row_tile = blockIdx.x, column_tile = 0;
    if (column_tiles > 1) {
      int rest = row_tile;
      int band = 0;
      if (column_tiles > RASTER_N) band = FastDiv(row_tiles * RASTER_N).divide(row_tile, rest);
      row_tile = FastDiv(min(RASTER_N, column_tiles - band * RASTER_N)).divide(rest, column_tile);
      column_tile += band * RASTER_N;
    }
    const int first_row = row_tile * BLOCK_M, first_column = column_tile * BLOCK_N;

    int tiles = cdiv(depth, BLOCK_K), first_tile = 0;
    if (SPLIT_K > 1) {
      const int share = cdiv(tiles, SPLIT_K);
      first_tile = min(static_cast<int>(blockIdx.z) * share, tiles);
      tiles = min(share, tiles - first_tile);
    }

    // Weights do not depend on the kernel before, so their first tiles are on the way while that one ends.
    const u32 shared = shared_address(shared_memory());
    Weights weights(args, thread, group, first_column, first_tile * BLOCK_K, depth);
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) {
      if (s < tiles) weights.copy(shared + s * STAGE_BYTES);
    }
    Pixels pixels(args, thread, group, first_row, rows, first_tile * BLOCK_K, depth);
    dependency_wait();
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) {
      if (s < tiles) pixels.copy(shared + s * STAGE_BYTES);
      copy_commit();
    }

    const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    const int first_channel = group * args.cout_g;
    const Results results = {args, first_row + warp_row, rows, first_channel + first_column + warp_column, lane};
    const Out output(args, first_channel, first_channel + args.cout_g, group == args.groups - 1);
    UnitStore<PREFETCH> units;
    if (PREFETCH && output.whole()) units.load(output, results);

    // Lane l reads row l % 16 of an A fragment and row l % 8 + l / 16 * 8 of a pair of B fragments; the chunk of a step differs from lane
    // to lane in one bit, so that a step is one more XOR.
    const int a_row = lane % 16, b_row = lane % 8 + lane / 16 * 8;
    const u32 a_lane = (warp_row + a_row) * ROW_BYTES, a_chunk = swizzle(a_row, lane / 16) * 16;
    const u32 b_lane = (BLOCK_M + warp_column + b_row) * ROW_BYTES, b_chunk = swizzle(b_row, lane / 8 % 2) * 16;

    Accumulators sums = {};
    Fragments fragments[2];
    copy_wait<STAGES - 2>();
    __syncthreads();
    u32 read = shared, write = shared + (STAGES - 1) * STAGE_BYTES;
    fragments[0].load(read + a_lane + a_chunk, read + b_lane + b_chunk);
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step == STEPS - 1) {
          // The next tile has arrived for everybody, and everybody has read this one.
          copy_wait<STAGES - 2>();
          __syncthreads();
          read = read == shared + (STAGES - 1) * STAGE_BYTES ? shared : read + STAGE_BYTES;
        }
        const u32 next = (step + 1) % STEPS * 32;
        fragments[(step + 1) % 2].load(read + a_lane + (a_chunk ^ next), read + b_lane + (b_chunk ^ next));
        if (step == 0) {
          if (tile + STAGES - 1 < tiles) {
            pixels.copy(write);
            weights.copy(write);
          }
          copy_commit();
          write = write == shared + (STAGES - 1) * STAGE_BYTES ? shared : write + STAGE_BYTES;
        }
        Fragments& now = fragments[step % 2];
        now.round();
#pragma unroll
        for (int m = 0; m < FRAGMENTS_M; ++m) {
#pragma unroll
          for (int n = 0; n < FRAGMENTS_N; ++n) Mma<TYPE>::multiply(sums[m][n], now.a[m], now.b[n]);
        }
      }
    }

    if constexpr (SPLIT_K > 1) {
      store_partials(results, sums);
    } else {
      if (output.whole()) {
        units.store(output, results, sums);
      } else {
        store_through_shared(output, results, sums, warp);
      }
      // Padding beyond the last tile's columns.
      const int tile_end = first_channel + first_column + BLOCK_N;
      if (column_tile == column_tiles - 1 && tile_end < output.written()) {
        for (int row = first_row + thread; row < min(first_row + BLOCK_M, rows); row += THREADS) {
          for (int channel = tile_end; channel < output.written(); ++channel) output.store_zero(row, channel);
        }
      }
    }
  }

 private:
  using Out = Output<TYPE, EPILOGUE, Args>;

  /// Where a warp's sums belong.
  struct Results {
    const Args& args;
    int first_row, rows;  // its first row, and the end of all rows
    int first_channel;
    int lane;

    __device__ __forceinline__ int row(int i) const { return first_row + lane / 4 + 8 * i; }                               // of THREAD_ROWS
    __device__ __forceinline__ int channel(int i) const { return first_channel + unit_column(lane) + GROUP_COLUMNS * i; }  // of COLUMN_GROUPS
    __device__ __forceinline__ int sample(int row) const { return EPILOGUE::USES_SAMPLE ? FastDiv(args.p * args.q)(row) : 0; }
  };

  /// Whether all that the epilogue reads is loaded before the product, which hides its latency where there is little else to hide it.
  static constexpr bool PREFETCH = SPLIT_K == 1 && ACCUMULATORS <= 32 && THREADS <= 128 &&
                                   COLUMN_GROUPS * (EPILOGUE::CHANNEL_OPS * UNIT + EPILOGUE::ROW_OPS * THREAD_ROWS * 4) <= 40;

  /// The usual way out, straight from registers: every unit is read and written in one piece.
  template <bool AHEAD>
  struct UnitStore {
    static constexpr int BATCH = EPILOGUE::ROW_OPS > 1 ? 4 : 8;  // rows whose operands are loaded together
    static constexpr int ROWS = AHEAD || THREAD_ROWS < BATCH ? THREAD_ROWS : BATCH;
    typename Out::Channels channel_values[AHEAD ? COLUMN_GROUPS : 1];
    typename Out::Row row_values[AHEAD ? COLUMN_GROUPS : 1][ROWS];

    __device__ __forceinline__ void load(const Out& output, const Results& results) {
#pragma unroll
      for (int c = 0; c < COLUMN_GROUPS; ++c) {
        output.load(channel_values[c], results.channel(c));
        load_rows(output, results, c, 0, row_values[c]);
      }
    }

    __device__ __forceinline__ void store(const Out& output, const Results& results, const Accumulators& sums) {
#pragma unroll
      for (int c = 0; c < COLUMN_GROUPS; ++c) {
        const int slot = AHEAD ? c : 0, channel = results.channel(c);
        if constexpr (!AHEAD) output.load(channel_values[0], channel);
#pragma unroll
        for (int first = 0; first < THREAD_ROWS; first += ROWS) {
          if constexpr (!AHEAD) load_rows(output, results, c, first, row_values[0]);
#pragma unroll
          for (int i = 0; i < ROWS; ++i) {
            if (first + i >= THREAD_ROWS) continue;
            const int row = results.row(first + i);
            float values[UNIT];
            gather(sums, (first + i) / 2, (first + i) % 2, c, results.lane, values);
            if (row < results.rows && channel < output.written())
              output.template store<true>(row, channel, values, channel_values[slot], row_values[slot][i]);
          }
        }
      }
    }

   private:
    static __device__ __forceinline__ void load_rows(const Out& output, const Results& results, int c, int first, typename Out::Row (&values)[ROWS]) {
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const int row = results.row(first + i);
        if (first + i < THREAD_ROWS && row < results.rows) output.template load<true>(values[i], row, results.sample(row), results.channel(c));
      }
    }
  };

  /// The way out for any offset, pitch and number of channels: through shared memory, so that the code for parts of units exists once.
  static __device__ __forceinline__ void store_through_shared(const Out& output, const Results& results, const Accumulators& sums, int warp) {
    constexpr int WARPS = THREADS / 32;
    constexpr int PASS_ROWS = WARPS * WARP_M * WARP_N * 4 <= SMEM_BYTES ? WARP_M : 16;
    constexpr int UNITS = WARP_N / UNIT;
    static_assert(WARPS * PASS_ROWS * WARP_N * 4 <= SMEM_BYTES, "a pass fits where the stages were");
    float* shared = reinterpret_cast<float*>(shared_memory()) + warp * (PASS_ROWS * WARP_N);
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < WARP_M / PASS_ROWS; ++pass) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < PASS_ROWS / 8; ++i) {
        float* target = shared + (8 * i + results.lane / 4) * WARP_N + results.lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n) {
          target[8 * n] = sums[pass * (PASS_ROWS / 16) + i / 2][n][2 * (i % 2)];
          target[8 * n + 1] = sums[pass * (PASS_ROWS / 16) + i / 2][n][2 * (i % 2) + 1];
        }
      }
      __syncwarp();
#pragma unroll 1
      for (int i = results.lane; i < PASS_ROWS * UNITS; i += 32) {
        const int row = results.first_row + pass * PASS_ROWS + i / UNITS, channel = results.first_channel + i % UNITS * UNIT;
        if (row >= results.rows || channel >= output.written()) continue;
        typename Out::Channels channel_values;
        typename Out::Row row_values;
        output.load(channel_values, channel);
        output.load(row_values, row, results.sample(row), channel);
        float values[UNIT];
#pragma unroll
        for (int u = 0; u < UNIT; ++u) values[u] = shared[i * UNIT + u];
        output.store(row, channel, values, channel_values, row_values);
      }
    }
  }

  /// The way out of a part of the reduction, in fp32. Channels up to the next multiple of 4 are written, and ws_pitch covers them.
  static __device__ __forceinline__ void store_partials(const Results& results, const Accumulators& sums) {
    const Args& args = results.args;
    float* part = static_cast<float*>(args.workspace) + static_cast<i64>(blockIdx.z) * results.rows * args.ws_pitch;
#pragma unroll
    for (int c = 0; c < COLUMN_GROUPS; ++c) {
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; ++i) {
        float values[UNIT];
        gather(sums, i / 2, i % 2, c, results.lane, values);
        if (results.row(i) >= results.rows || results.channel(c) >= args.cout_g) continue;
        float* target = part + static_cast<i64>(results.row(i)) * args.ws_pitch + results.channel(c);
#pragma unroll
        for (int u = 0; u < UNIT; u += 4) {
          const float four[4] = {values[u], values[u + 1], values[u + 2], values[u + 3]};
          if (results.channel(c) + u < args.cout_g) store_unit<TF32>(target + u, true, 4, four);
        }
      }
    }
  }
};

}  // namespace tilewright
