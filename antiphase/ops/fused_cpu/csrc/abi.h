// The types of the C interface (`abi.py` mirrors them field by field), and how a call is cut
// into heads, blocks of query rows and tiles of keys.

#pragma once

#include "vec.h"

extern "C" {
struct View {  // [B, H, T, channels], element strides; channels are adjacent
  void* data;
  int64_t batch, head, row;
};
struct Call {
  int64_t dtype;   // 0 fp32, 1 bf16, 2 fp16
  int64_t kernel;  // 0 brgemm fp32, 1 brgemm bf16, 2 blas bf16
  int64_t B, H, Hkv, Tq, Tk, d1, d2, dv;
  int64_t causal;
  int64_t block_rows;  // query rows that go together
  int64_t pack_bytes;  // of keys and values packed at a time, at least one head
  double scale1, scale2;
  View q1, k1, q2, k2, v, lam, sink;  // q2.data is null for one map, sink.data for no sink
  View out, lse1, lse2;
  View dout, dq1, dk1, dq2, dk2, dv_, dlam, dsink;
};
}

namespace antiphase {

template <class N>
N* at_row(const View& t, int64_t b, int64_t h, int64_t i) {
  return static_cast<N*>(t.data) + b * t.batch + h * t.head + i * t.row;
}

// Whether both maps have the same keys: then they are packed, or read, once.
inline bool same_keys(const Call& c) {
  const View &a = c.k1, &b = c.k2;
  return a.data == b.data && c.d1 == c.d2 && a.batch == b.batch && a.head == b.head &&
         a.row == b.row;
}

// What both passes know of a block of query rows.
struct Rows {
  int64_t tile;                  // keys in a tile
  int64_t first, count, padded;  // query rows, and the count the products run with
  int64_t columns;               // keys that any of them sees, padded to a grain

  Rows(const Call& c, int64_t tile, int64_t block) : tile(tile) {
    first = block * c.block_rows;
    count = std::min(c.block_rows, c.Tq - first);
    padded = round_up(count, kRowGrain);
    columns = round_up(keys_of(c, count - 1), kGrain);
  }
  int64_t keys_of(const Call& c, int64_t r) const {  // bottom-right aligned when causal
    if (!c.causal) return c.Tk;
    return std::clamp<int64_t>(first + r + 1 + c.Tk - c.Tq, 0, c.Tk);
  }
  int64_t tiles() const { return (columns + tile - 1) / tile; }
  int64_t width(int64_t t) const { return std::min(tile, columns - t * tile); }
};

struct Sizes {
  int64_t maps, tiles, blocks, group, d_max;  // group: query heads that share a key head
  Sizes(const Call& c, int64_t tile)
      : maps(c.q2.data ? 2 : 1),
        tiles((c.Tk + tile - 1) / tile),
        blocks((c.Tq + c.block_rows - 1) / c.block_rows),
        group(c.H / c.Hkv),
        d_max(std::max({c.d1, c.d2, c.dv})) {}
};

// Tile t of the keys of key head g (batch and head in one index).
struct Tile {
  int64_t b, h, first, count, padded;
  Tile(const Call& c, int64_t tile, int64_t g, int64_t t)
      : b(g / c.Hkv), h(g % c.Hkv), first(t * tile), count(std::min(tile, c.Tk - first)),
        padded(round_up(count, kGrain)) {}
};

}  // namespace antiphase
