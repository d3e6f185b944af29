// The operations of the plug-in, one function each, defined beside their contracts in OP_cuda.cu. Every function
// launches its work on the context's stream and returns; failures stay in the context's fault.
#pragma once

#include <span>

#include "ops/attention/attend.h"
#include "ops/attention/heads.h"
#include "ops/attention/inputs.h"
#include "ops/attention/sparse_attention.h"
#include "ops/compressor/compress.h"
#include "ops/draft/mtp_input.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/indexer/index_select.h"
#include "ops/linear/embed.h"
#include "ops/linear/linear.h"
#include "ops/moe/experts.h"
#include "ops/moe/route.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/sampling/choose.h"

namespace fathom::ops::cuda {

struct Context;

void run(Context& c, const Embed& op);
void run(Context& c, const Linear& op);
void run(Context& c, std::span<const Linear> ops);  // Backend::linears
void run(Context& c, const RmsNorm& op);
void run(Context& c, const RopeTable& op);
void run(Context& c, const HcPre& op);
void run(Context& c, const HcPost& op);
void run(Context& c, const HcPostPre& op);
void run(Context& c, const HcHead& op);
void run(Context& c, const StreamMean& op);
void run(Context& c, const QueryHeads& op);
void run(Context& c, const WindowEntries& op);
void run(Context& c, const AttentionInputs& op);
void run(Context& c, const Queries& op);
void run(Context& c, const SparseAttention& op);
void run(Context& c, const Attend& op);
void run(Context& c, const StoreWindow& op);
void run(Context& c, const Compress& op);
void run(Context& c, const IndexQuery& op);
void run(Context& c, const IndexSelect& op);
void run(Context& c, const Route& op);
void run(Context& c, const Experts& op);
void run(Context& c, const MtpInput& op);
void run(Context& c, const Choose& op);

}  // namespace fathom::ops::cuda
