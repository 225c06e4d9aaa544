// Attention of new tokens over the paged KV pools on the matrix units: see custom_kernels/ops/attention.py for what it
// computes, and attention_fragments.h for which lane holds what.
//
// The query heads of a KV head, of all tokens of a sequence, are rows of one matrix. A wave keeps BLOCKS factors of them and
// goes over the keys 16 or 32 at a time: no score is stored. With few rows (FEW) the waves of a workgroup take turns at the
// keys and meet at the end; with many, each has rows of its own. Values wider than MOST_PART are dealt to two or four waves
// (PARTS). NVIDIA's GPUs copy keys and values into local memory long before they are used (flash_ring.h); AMD's, whose
// copies take registers, load each where it is used, and find in the cache what another wave asked for (flash_pools.h). Of
// few rows, and of float32 ones, queries and weights go in as two terms of 16 bits (TERMS), so 22 bits of them with f16 and
// fp8 pools and 16 with bf16 ones. Softmax is online, each tile's mix is a sum of its own, added in float32 (flash_sums.h).
//
// `splits` workgroups share a sequence's positions: `split_share` each, so that what a row of few sums in which order
// depends on its position alone. A workgroup past the end says so and is done; `attention_combine` joins the others.
#pragma once

#if defined(__AMDGCN__)
#include "flash_pools.h"

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART, bool SPLIT, class Y>
using FlashAttention = FlashPools<X, T, D, DV, MOST_BLOCKS, MOST_PART, SPLIT, Y>;
#else
#include "flash_ring.h"

template <class X, class T, u32 D, u32 DV, u32 MOST_BLOCKS, u32 MOST_PART, bool SPLIT, class Y>
using FlashAttention = FlashRing<X, T, D, DV, MOST_BLOCKS, MOST_PART, SPLIT, Y>;
#endif
