// Which instruction sets every CPU kernel is compiled for. Included before anything of Highway.
//
// AVX3_DL (Ice Lake, Zen 4 and later: VBMI byte permutes) must be asked for. SSSE3 machines take the scalar path: they
// are older than any that can hold such a model. ARM takes NEON: registers whose size the compiler does not know cannot
// be members of a struct (lanes-inl.h).
#pragma once

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
