// The types of the C interface (`abi.py` mirrors them field by field), and how a call is split into
// heads, blocks of query rows and tiles of keys.

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
  int64_t causal;
  int64_t block_rows;  // query rows in a block
  int64_t pack_bytes;  // keys and values packed at a time, at least one head
  double scale1, scale2;
  TensorView q1, k1, q2, k2, v, lam, sink;  // q2.data is null with one map, sink.data without sink
  TensorView out, lse1, lse2;
  TensorView dout, dq1, dk1, dq2, dk2, dv_, dlam, dsink;
};
}

namespace antiphase {

template <class scalar_t>
scalar_t* at_row(const TensorView& t, int64_t b, int64_t h, int64_t i) {
  return static_cast<scalar_t*>(t.data) + b * t.batch + h * t.head + i * t.row;
}

// Whether both maps have the same keys (DIFF V2): then they are packed, or read, once.
inline bool same_keys(const KernelArguments& args) {
  const TensorView &a = args.k1, &b = args.k2;
  return a.data == b.data && args.d1 == args.d2 && a.batch == b.batch && a.head == b.head &&
         a.row == b.row;
}

// A block of query rows, in the forward and the backward pass.
struct RowBlock {
  int64_t tile;                  // keys in a tile
  int64_t first, count, padded;  // query rows; the products run with the padded count
  int64_t columns;               // keys that any row attends to, padded

  RowBlock(const KernelArguments& args, int64_t tile, int64_t block) : tile(tile) {
    first = block * args.block_rows;
    count = std::min(args.block_rows, args.Tq - first);
    padded = round_up(count, kRowAlign);
    columns = round_up(keys_of(args, count - 1), kKeyAlign);
  }
  // Number of keys that row r attends to; causality is aligned to the bottom right.
  int64_t keys_of(const KernelArguments& args, int64_t r) const {
    if (!args.causal) return args.Tk;
    return std::clamp<int64_t>(first + r + 1 + args.Tk - args.Tq, 0, args.Tk);
  }
  int64_t tiles() const { return (columns + tile - 1) / tile; }
  int64_t width(int64_t t) const { return std::min(tile, columns - t * tile); }
};

struct Sizes {
  int64_t maps, tiles, blocks, group, d_max;  // group: query heads per key/value head
  Sizes(const KernelArguments& args, int64_t tile)
      : maps(args.q2.data ? 2 : 1),
        tiles((args.Tk + tile - 1) / tile),
        blocks((args.Tq + args.block_rows - 1) / args.block_rows),
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
