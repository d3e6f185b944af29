// Matmul: the one matrix product of the plug-in, y = x W^T on bf16 tensor units with f32 sums, for every weight format,
// for one matrix or for a table of experts, for 1 token or thousands.
//
// Exactness. What meets in a product are bf16 numbers: FP8, FP4 and BF16 weights are bf16 numbers times a scale that is
// applied where it is exact, F32 weights are sums of three bf16 numbers; activations that went through FP8 or that were
// rounded to bf16 are bf16 numbers, other f32 activations sums of three ("planes"). So every product is exact and only
// sums are rounded, in f32.
//
// Order. The inputs are cut into blocks of 128, summed inside by the tensor unit in a fixed order; blocks are summed
// into segments and segments into the result, cut and ordered by the number of inputs alone. So an output's bits depend
// on its row of W and its row of x, whoever computes it and however many tokens there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/moe/experts.h"
#include "ops/numerics.h"
#include "ops/weight.h"
#include "tensor/view.h"

namespace fathom::ops::cuda {

struct Context;

inline constexpr int kBlock = 128;  // inputs between two roundings of a sum

// Segments of a product over `cols` inputs.
constexpr int segments_of(std::int64_t cols) {
  const std::int64_t blocks = (cols + kBlock - 1) / kBlock;
  return blocks >= 32 ? 8 : blocks >= 16 ? 4 : blocks >= 8 ? 2 : 1;
}

// Puts the codes of an FP4 matrix into the order that the kernels read, in place (matmul_common.cuh). Other matrices, and
// FP4 that only the kernel for odd formats takes, stay as they are.
void prepare_fp4(Context& c, const Weight& w);

// How a lane's share of 128 inputs lies in W: two runs of 16, one in each half of the block, or 32 in a row. It follows
// from what a lane reads of W at once. And how x lies: for lanes that read runs of 16, within 8 values 0 4 1 5 2 6 3 7,
// or for a kernel that has rows of x in shared memory (kShared): the same groups of 16 values, each in the order of
// columns of the instruction.
enum class Order : std::uint8_t { kHalves, kRow, kHalvesShared, kRowShared };
constexpr bool is_shared(Order o) { return o == Order::kHalvesShared || o == Order::kRowShared; }

// Rows of x as bf16 planes, in the order that the tensor units read. Rows are padded with zeros to whole blocks.
struct Planes {
  const std::uint16_t* data = nullptr;
  std::int64_t row_stride = 0;    // elements from row to row
  std::int64_t plane_stride = 0;  // elements from plane to plane
  int planes = 1;
  Order order = Order::kHalves;  // which kernel reads them follows from it

  // Elements that `rows` rows of `cols` values take in one plane.
  static std::int64_t padded(std::int64_t cols) { return (cols + kBlock - 1) / kBlock * kBlock; }
};

// What x is known to be.
enum class Values : std::uint8_t { kF32, kBf16, kQuantise };  // kQuantise: put through FP8 in blocks of 128 here

// Bytes that planes of [rows, cols] take.
std::size_t planes_bytes(std::int64_t rows, std::int64_t cols, Values values);

// Planes to be made of x. The columns may be `groups` rows side by side: then row t, group g is row t * groups + g of
// the planes.
struct PlanesOf {
  Mat<const float> x;
  std::int64_t groups = 1;
  Values values = Values::kF32;
  Order order = Order::kHalves;
  std::byte* memory = nullptr;         // device memory aligned to 256
  Order other_order = Order::kHalves;  // of rows from `other_from` on, and of a second copy of all rows in other_memory
  std::byte* other_memory = nullptr;   // or none
  std::int64_t other_from = std::int64_t{1} << 62;
};
// Makes them; returns those in `memory`.
Planes make_planes(Context& c, const PlanesOf& p);
// The same once they have been made.
Planes planes_in(const PlanesOf& p);
// The same planes in other memory, or from a row on, in the order that is there.
inline Planes at(Planes p, const std::byte* memory, Order order) {
  p.data = reinterpret_cast<const std::uint16_t*>(memory);
  p.order = order;
  return p;
}
inline Planes from_row(Planes p, std::int64_t row, Order order) {
  p.data += row * p.row_stride;
  p.order = order;
  return p;
}

// Some tokens of one expert: list entries [first, first + count).
struct Item {
  std::int32_t expert;
  std::int32_t first;
  std::int32_t count;
};

// Which matrix of an expert. kGate: w1 and w3 at once, through SwiGLU.
enum class Part : std::uint8_t { kGate, kDown };

struct Matmul {
  Weight w;        // the matrix, w1 where the part is kGate; for experts the shape and type that all have
  Weight w3 = {};  // of one matrix, kGate
  const ExpertWeights* table = nullptr;  // experts, on the device; null: one matrix
  Part part = Part::kDown;
  std::int64_t groups = 1;  // as in Linear; 1 for experts

  Planes x;
  // Experts: list entry i reads row list[i] of x (null: row i) and writes row i of y.
  const std::int32_t* list = nullptr;
  const Item* items = nullptr;
  const std::int32_t* n_items = nullptr;  // on the device
  std::int64_t most_items = 1;            // no more than that
  int tokens_an_item = 0;                 // no item has more
  std::int64_t rows = 0;                  // one matrix: rows of x and y

  // kGate: y = carry(weights[i] * silu(a) * b), with a, b clamped and rounded before; weights null: 1.
  const float* weights = nullptr;
  float swiglu_limit = 0;

  Mat<float> y;
  Carrier carrier = Carrier::kF32;
};

// The kernel for products of w, or of `matrices` like it at once, with about `rows_each` tokens: in which order it
// wants x, and how many tokens to put into an item of an expert.
Order order_for(const Weight& w);  // for few tokens
Order order_for(const Context& c, const Weight& w, Values values, std::int64_t rows_each, std::int64_t matrices = 1);
int tokens_an_item(const Context& c, const Weight& w, Values values, std::int64_t rows_each, std::int64_t matrices);

void run_matmul(Context& c, const char* name, const Matmul& m);

// Matrices of one format for 9 to 64 tokens on Hopper, through memory for sums: up to 8 of one part at once, or one that
// is not resident_at_once. Takes planes in the order kHalves; memory: resident_bytes of each, aligned to 256.
bool takes_resident(const Context& c, const Weight& w, Values values, std::int64_t rows);
bool resident_at_once(const Weight& w, std::int64_t groups);
std::size_t resident_bytes(const Weight& w, std::int64_t rows, std::int64_t groups, Part part);
void run_resident(Context& c, const char* name, std::span<const Matmul> products, std::byte* memory);

// Experts in FP4 with about `rows_each` tokens, in items of up to 8, a warp whole rows. Takes planes in the order kRow.
bool takes_alone(const Context& c, const Weight& w, Values values, std::int64_t rows_each);
void run_alone(Context& c, const char* name, const Matmul& m);

// ---- Several products for few tokens in one launch.

inline constexpr int kListTokens = 8;   // of an item, and of products of one matrix
inline constexpr int kFewChoices = 64;  // of experts, of all tokens
inline constexpr int kListJobs = 8;

// The experts that few tokens chose; tokens * k <= kFewChoices.
struct Choices {
  const ExpertWeights* table = nullptr;
  const std::int32_t* experts = nullptr;
  const float* weights = nullptr;
  std::int64_t experts_ld = 0;
  std::int64_t weights_ld = 0;
  int tokens = 0;
  int k = 0;
};

// One product of the list. Its inputs are m.x, or the rows x, which need not be planes; a product of experts
// follows the plan of the choices.
struct Product {
  Matmul m;
  Mat<const float> x = {};
  Values values = Values::kBf16;
  Order order = Order::kHalves;
  bool by_token = false;  // rows of the inputs are tokens, not entries of the plan's list
};

// Whether a list takes products of w with `rows` rows of such values.
bool list_takes(const Weight& w, std::int64_t rows, std::int64_t groups, Values values);

// All are of one part and at most two formats; results are those of run_matmul.
void run_list(Context& c, const char* name, std::span<const Product> products, const Choices& choices = {});

}  // namespace fathom::ops::cuda
