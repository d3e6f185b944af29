// Which instruction sets every CPU kernel is compiled for. Included before anything of Highway.
//
// AVX3_DL (Ice Lake, Zen 4 and later: VBMI byte permutes) must be asked for. SSSE3 machines take the scalar path: they
// are older than any that can hold such a model.
#pragma once

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS HWY_SSSE3
