// The types of the C interface; `abi.py` mirrors them field by field.

#pragma once

#include "vec.h"

extern "C" {
struct TensorView {  // [B, H, T, channels], strides in elements; channels are contiguous
  void* data;
  int64_t batch, head, row;
};
struct KernelArguments {
  int64_t dtype;   // 0 fp32, 1 bf16, 2 fp16
  int64_t kernel;  // 0 brgemm fp32, 1 brgemm bf16, 2 blas bf16
  int64_t B, H, Hkv, Tq, Tk, d1, d2, dv;
  int64_t q2_group, k2_group;  // signal heads per head of q2, key/value heads per head of k2
  int64_t shared_keys;         // both maps have the keys k1 (DIFF V2); k2.data is null
  int64_t causal, window, keep_first;  // window 0: none
  int64_t mask_dtype;                  // 0 fp32, 1 bf16, 2 fp16, 3 boolean (true: attend)
  int64_t seed, dropout;               // dropped where 24 random bits are below `dropout`
  int64_t block_rows;                  // query rows in a block
  int64_t pack_bytes;                  // keys and values packed at a time, at least one head
  double scale1, scale2, softcap;      // softcap 0: none
  TensorView q1, k1, q2, k2, v, lam, sink;  // q2.data is null with one map, sink.data without sink
  TensorView mask;       // null: none; its channels are the keys, a stride of 0 repeats it
  TensorView documents;  // int32 [B, 1, Tq, 2], the first key and the end of each row's document
  TensorView out, max1, max2, inverse1, inverse2;  // per row: the maximum of the scores that was
                                                   // subtracted, and 1 / the sum of the exponentials
  TensorView dout, dq1, dk1, dq2, dk2, dv_, dlam, dsink;
};
}

namespace antiphase {

template <class scalar_t>
scalar_t* at_row(const TensorView& t, int64_t b, int64_t h, int64_t i) {
  return static_cast<scalar_t*>(t.data) + b * t.batch + h * t.head + i * t.row;
}

// One of the two maps of a call. The head indices are those of the signal queries and of the
// key/value heads: noise heads may be fewer.
struct Map {
  const TensorView &q, &k, &max, &inverse;
  int64_t d, q_group, k_group;
  float scale;

  Map(const KernelArguments& args, int map)
      : q(map ? args.q2 : args.q1),
        k(map && !args.shared_keys ? args.k2 : args.k1),
        max(map ? args.max2 : args.max1),
        inverse(map ? args.inverse2 : args.inverse1),
        d(map ? args.d2 : args.d1),
        q_group(map ? args.q2_group : 1),
        k_group(map && !args.shared_keys ? args.k2_group : 1),
        scale(static_cast<float>(map ? args.scale2 : args.scale1)) {}

  template <class scalar_t>
  const scalar_t* queries(int64_t b, int64_t h, int64_t i) const {
    return at_row<scalar_t>(q, b, h / q_group, i);
  }
  template <class scalar_t>
  const scalar_t* keys(int64_t b, int64_t h_kv, int64_t j) const {
    return at_row<scalar_t>(k, b, h_kv / k_group, j);
  }
};

struct Sizes {
  int64_t maps, packed_maps, tiles, group, d_max;  // group: query heads per key/value head
  Sizes(const KernelArguments& args, int64_t tile)
      : maps(args.q2.data ? 2 : 1),
        packed_maps(args.shared_keys ? 1 : maps),
        tiles((args.Tk + tile - 1) / tile),
        group(args.H / args.Hkv),
        d_max(std::max({args.d1, args.d2, args.dv})) {}
};

// Tile t of the keys of key/value head kv (batch and head in one index).
struct KeyTile {
  int64_t b, h, first, count, padded;
  KeyTile(const KernelArguments& args, int64_t tile, int64_t kv, int64_t t)
      : b(kv / args.Hkv),
        h(kv % args.Hkv),
        first(t * tile),
        count(std::min(tile, args.Tk - first)),
        padded(round_up(count, kKeyAlign)) {}
};

}  // namespace antiphase
