// Codes: products of quantised weights with inputs that go through FP8, on Hopper's FP8 tensor units. model.md 4.3, 4.4;
// kernels.md 2.0.4, 2.0.5.
//
// Where they are used (takes_codes) is a matter of the weight, the GPU and the numerics, never of the number of tokens:
// all products of such a weight go this way, and all of its kernels have the same bits. Other weights, and inputs that
// are not quantised, go by matmul.h.
//
// What is multiplied. Inputs are e4m3 codes with one scale per block of 128 (act_quant). FP8 weights are their codes;
// FP4 weights are e4m3 codes too, exactly, with the scale of each 32 inputs folded in relative to the largest of the
// row's block. So products are exact; the tensor unit adds 128 of them with the 14 bits or so that it keeps, f32 the rest.
//
// Order of sums. The 128 products of a block are four steps of 32 in a fixed order, from zero; a block's sum times the two
// scales is added to the segment's total, blocks ascending; segments are added up ascending. Segments follow from the
// weight (code_segments).
//
// How weights lie, once packed (pack_weight): tiles of 64 rows by 128 inputs in the order in which the lanes of four warps
// read them: lane (g, t) of warp w, g = lane / 4, t = lane % 4, has rows 16 w + g and + 8 and inputs [32 t, 32 t + 32) of
// the block. Tile (R, b) is the (R * blocks + b)-th.
//   FP8  8,192 bytes [step j of 4][thread][4 words]: row g inputs 32 t + 8 j + 0..3, row g + 8 the same, row g inputs + 4..7,
//        row g + 8 the same: the registers of step j.
//   FP4  4,096 bytes [half h of 2][thread][4 words of 8 codes]: row g inputs 32 t + 16 h + 0..7, row g + 8 the same, row g
//        inputs + 8..15, row g + 8 the same. Of code i of a word the three bits of the value are bits 4 i.., the sign is
//        bit 8 i + 7 for i < 4, else bit 8 (i - 4) + 3: then eight codes expand in seven instructions (codes.cuh).
//        Scales: 256 bytes a tile, [warp][g][row g, row g + 8] words: bits 4 t.. are how far group t is above 2^-5, 0..11,
//        the top byte e the exponent that a row's block has in common, 2^(e - 127).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/matmul.h"

namespace fathom::ops::cuda {

// Whether products with w go this way: w.quantised_inputs, rows and inputs in whole blocks of 128, FP8, or FP4 with scales
// that are powers of two, on a GPU that has the instruction.
bool takes_codes(const Context& c, const Weight& w);

// Segments of a product of w. Matrices with many rows, and experts, have enough rows to keep a GPU busy: one.
int code_segments(const Weight& w, bool expert);

// Packs the weight in place. Of a group of 32 FP4 weights that is more than 2^11 below the largest of its row's block
// of 128, zeros are made: they are below what the tensor unit keeps of a sum.
void pack_weight(Context& c, const Weight& w);

// Rows of inputs as codes, in device memory.
struct Codes {
  const std::uint8_t* data = nullptr;  // [rows][blocks][128], input k of a block at code_place(k)
  const float* scales = nullptr;       // [rows][blocks]
  int blocks = 0;
};
constexpr int kCodeRow = kBlock;  // bytes of a block

// Where in its block's 128 bytes input k is: the order in which the instruction reads four lanes' inputs.
constexpr int code_place(int k) { return k % 32 / 8 * 32 + k % 8 / 4 * 16 + k / 32 * 4 + k % 4; }

// Bytes that codes of [rows, cols] take; cols in whole blocks.
std::size_t codes_bytes(std::int64_t rows, std::int64_t cols);
// Makes them of x, in memory aligned to 256.
Codes make_codes(Context& c, Mat<const float> x, std::byte* memory);

// One product, of a matrix or of a table of experts, as Matmul has it, but that its inputs are `x` and not m.x.
struct CodesProduct {
  Matmul m;
  Codes x;
  bool expert = false;  // routed or shared
};

// The plain kernel: any number of tokens, eight at a time. The judge of the others.
void run_codes_plain(Context& c, const char* name, const CodesProduct& p);

}  // namespace fathom::ops::cuda
