// Index scores on the CPU, from within: what index_select_cpu.cc asks of index_score_cpu.cc.
#pragma once

#include <cstdint>

#include "ops/cpu.h"
#include "ops/indexer/index_select.h"

namespace fathom::ops::cpu {

// The index queries of one token as scoring reads them: a lane is a head, so no register needs a closing tree. Heads
// are filled up to a multiple of 16 with zeros.
struct ScoreQuery {
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  bool exact = false;       // integers below instead of q
  float* weights;           // [heads], scaled
  float* q;                 // [dim][heads]
  std::int8_t* codes;       // [dim/4][heads][4]: doubled E2M1, the even dims of each 32 before the odd ones
  std::int32_t* start;      // [dim/32][heads]: -12 times the sum of the codes
  float* scales;            // [dim/32][heads]: a quarter of the block scales
  std::int8_t* head_codes;  // [dim]: one head on its way
};

ScoreQuery take_score_query(const IndexSelect& op, Scratch& scratch);

// Sets the query to those of token t.
void prepare_query(const IndexSelect& op, std::int64_t t, ScoreQuery& query);

// Memory that score_keys needs, one piece for each thread.
float* take_score_keys(const IndexSelect& op, Scratch& scratch);

// scores[w] of the entries [begin, end) of segment s; what is computed for one entry does not depend on the others.
void score_keys(const IndexSelect& op, const Segment& s, const ScoreQuery& query, std::int32_t begin, std::int32_t end,
                float* memory, float* scores);

// Entries are scored this many at a time.
inline constexpr std::int64_t kScoreKeys = 4;

}  // namespace fathom::ops::cpu
