// Steps: the pieces in which a warp of few tokens' products has weights under way, in every format. A step is 64 bytes
// a lane of one matrix, of rows g and g + 8; a round is kRound steps. While a round is added the next one is read into
// the same registers, step by step.
//
// Code is short on purpose: at batch 1 a hundred kernels run between two runs of the same one, and what does not fit
// the instruction caches is fetched anew each time.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace fathom::ops::cuda {

inline constexpr int kRound = 2;

struct Step {
  uint4 v[4];
  std::uint32_t scale[4];
};

// What a warp reads of one matrix: where the lane's two rows lie, from the beginning of the next round on.
struct Lines {
  const std::byte* data[2];
  const std::byte* scale[2];
};

// A lane's inputs of half a block, zeros where its token is not there.
struct Inputs {
  uint4 x0 = {0, 0, 0, 0};
  uint4 x1 = {0, 0, 0, 0};

  __device__ Inputs(const std::uint16_t* x, int block, int half, bool there) {
    if (!there) return;
    const auto* at = reinterpret_cast<const uint4*>(x + block * kBlock + 64 * half);
    x0 = at[0];
    x1 = at[1];
  }
};

// load reads step `step` of a round of `blocks` blocks of one matrix, add adds it; x: the lane's inputs from the
// round's first block on.
template <Format F>
struct Steps;

template <>
struct Steps<Format::kFp8> {
  static constexpr int kPerBlock = 1;  // steps of a block
  static constexpr int kBlocks = 1;    // blocks of a step
  static constexpr int kBytes = 128;   // of a row in a block
  static constexpr int kScales = 1;    // of a row in a block

  static __device__ void load(Step& s, const Lines& at, int step, int, bool scales_f32) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s.v[2 * r] = read16(at.data[r] + step * kBytes);
      s.v[2 * r + 1] = read16(at.data[r] + step * kBytes + 64);
    }
    s.scale[0] = scales_f32 ? reinterpret_cast<const std::uint32_t*>(at.scale[0])[step]
                            : static_cast<std::uint32_t>(at.scale[0][step]);
  }
  static __device__ void add(float (&acc)[4], float (&)[4], const Step& s, const std::uint16_t* x, bool there, int step,
                             int, bool scales_f32) {
    float part[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Inputs in(x, step, half, there);
      std::uint32_t lower[8];
      std::uint32_t upper[8];
      Loader<Format::kFp8>::pairs4(s.v[half].x, s.v[half].y, lower);
      Loader<Format::kFp8>::pairs4(s.v[half].z, s.v[half].w, lower + 4);
      Loader<Format::kFp8>::pairs4(s.v[2 + half].x, s.v[2 + half].y, upper);
      Loader<Format::kFp8>::pairs4(s.v[2 + half].z, s.v[2 + half].w, upper + 4);
      mma_chunk(part, lower, upper, in.x0, in.x1);
    }
    const float scale = scales_f32 ? __uint_as_float(s.scale[0]) : ue8m0(s.scale[0]);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = fmaf(part[i], scale, acc[i]);
  }
};

template <>
struct Steps<Format::kBf16> {  // half a block a step: the part is kept from the first to the second
  static constexpr int kPerBlock = 2;
  static constexpr int kBlocks = 1;
  static constexpr int kBytes = 256;
  static constexpr int kScales = 0;

  static __device__ void load(Step& s, const Lines& at, int step, int, bool) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s.v[2 * r] = read16(at.data[r] + step * (kBytes / 2));
      s.v[2 * r + 1] = read16(at.data[r] + step * (kBytes / 2) + 16);
    }
  }
  static __device__ void add(float (&acc)[4], float (&part)[4], const Step& s, const std::uint16_t* x, bool there,
                             int step, int, bool) {
    const Inputs in(x, step / 2, step % 2, there);
    std::uint32_t lower[8];
    std::uint32_t upper[8];
    Loader<Format::kBf16>::pairs4(s.v[0], lower);
    Loader<Format::kBf16>::pairs4(s.v[1], lower + 4);
    Loader<Format::kBf16>::pairs4(s.v[2], upper);
    Loader<Format::kBf16>::pairs4(s.v[3], upper + 4);
    if (step % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part[i] = 0;
    }
    mma_chunk(part, lower, upper, in.x0, in.x1);
    if (step % 2 == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = fmaf(part[i], 1.0F, acc[i]);
  }
};

template <>
struct Steps<Format::kFp4> {  // two blocks a step
  static constexpr int kPerBlock = 1;
  static constexpr int kBlocks = 2;
  static constexpr int kBytes = 64;
  static constexpr int kScales = 4;

  static __device__ void load(Step& s, const Lines& at, int step, int blocks, bool) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (2 * step + j >= blocks) return;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s.v[2 * j + r] = read16(at.data[r] + (2 * step + j) * kBytes);
        s.scale[2 * j + r] = static_cast<std::uint32_t>(at.scale[r][(2 * step + j) * kScales]);
      }
    }
  }
  static __device__ void add(float (&acc)[4], float (&)[4], const Step& s, const std::uint16_t* x, bool there, int step,
                             int blocks, bool) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (2 * step + j >= blocks) return;
      float part[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Inputs in(x, 2 * step + j, half, there);
        std::uint32_t lower[8];
        std::uint32_t upper[8];
        Loader<Format::kFp4>::expand({s.v[2 * j], s.scale[2 * j]}, half, 0, lower);
        Loader<Format::kFp4>::expand({s.v[2 * j + 1], s.scale[2 * j + 1]}, half, 0, upper);
        mma_chunk(part, lower, upper, in.x0, in.x1);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[i] = fmaf(part[i], 0x1p32F, acc[i]);
    }
  }
};

// Blocks of a round of one matrix, where a round's steps go round kMatrices matrices.
template <Format F, int kMatrices>
__host__ __device__ constexpr int round_blocks() {
  return kRound / kMatrices * Steps<F>::kBlocks / Steps<F>::kPerBlock;
}

// Blocks [begin, end) of a segment of the inputs.
struct Span {
  int begin;
  int end;
};
__device__ inline Span span_of(const Job& job, int segment) {
  return {job.blocks * segment / job.segments, job.blocks * (segment + 1) / job.segments};
}

// Where the lane's rows row and row + 8 of a group begin at a block. Rows past the last stand for it.
template <Format F>
__device__ inline Lines lines_of(const Job& job, const WeightView& w, int group, int row, int block) {
  Lines lines;
  const int lane = threadIdx.x % kWarp;
  constexpr int kLane = F == Format::kBf16 ? 32 : 16;  // bytes of a lane's run
  const int scale_bytes = job.scales_f32 ? 4 : 1;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = group * job.group_rows + min(row + 8 * r, job.group_rows - 1);
    lines.data[r] = w.data + at * job.row_bytes + block * Steps<F>::kBytes + kLane * (lane % 4);
    const std::int64_t first = F == Format::kFp8 ? at / quant::kWeightBlock : at;
    lines.scale[r] =
        w.scales +
        (first * job.scale_stride + block * Steps<F>::kScales + (F == Format::kFp4 ? lane % 4 : 0)) * scale_bytes;
  }
  return lines;
}
template <Format F>
__device__ inline void advance(Lines& lines, int blocks, bool scales_f32) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    lines.data[r] += blocks * Steps<F>::kBytes;
    lines.scale[r] += blocks * Steps<F>::kScales * (scales_f32 ? 4 : 1);
  }
}

}  // namespace fathom::ops::cuda
