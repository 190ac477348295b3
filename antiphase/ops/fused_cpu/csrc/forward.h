// The forward pass. For a block of query rows, the scores of both maps are exponentiated tile by
// tile; when both row sums are known, the maps are combined and meet V once.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"

namespace antiphase {

template <class N, class G>
struct Forward {
  using Op = typename G::Op;
  static constexpr int64_t kTile = G::kTile, kJoin = 2;  // tiles in one product with V
  const Call& c;
  const Sizes z;
  int64_t heads = 0;  // key heads packed at a time
  Buffer<Op> keys[2], values;
  Buffer<float> norms[2];  // the largest square norm of a key, tile by tile

  explicit Forward(const Call& call) : c(call), z(call, kTile) {}

  struct Worker {
    Buffer<Op> q, e[2], a;  // e: 2^(score - m) of a whole block of rows, tile by tile
    Buffer<float> s, o, sums;                  // a tile of scores, the output, sums lane by lane
    Buffer<float> m_tile[2], m[2], weight[2];  // what score() keeps of a row
    Release<G> release;
  };

  Worker make_worker() const {
    const int64_t R = round_up(c.block_rows, kRowGrain);
    Worker w;
    w.q.resize(R * z.d_max);
    w.a.resize(R * kJoin * kTile);
    w.o.resize(R * c.dv);
    w.s.resize(R * kTile);
    w.sums.resize(R * VL);
    for (int map = 0; map < z.maps; map++) {
      w.e[map].resize(R * kTile * z.tiles);
      w.m_tile[map].resize(R * z.tiles), w.m[map].resize(R), w.weight[map].resize(R);
    }
    std::memset(w.a.get(), 0, R * kJoin * kTile * sizeof(Op));
    return w;
  }

  // Keys and values are packed for a few heads at a time: enough work to share, little memory.
  void run() {
    constexpr int64_t kItemsPerThread = 8;
    const int64_t total = c.B * c.Hkv, keys_padded = z.tiles * kTile;
    const int64_t width = c.d1 + (z.maps == 2 ? c.d2 : 0) + c.dv;
    const int64_t bytes = keys_padded * width * static_cast<int64_t>(sizeof(Op));
    const int64_t busy = kItemsPerThread * at::get_num_threads() / (z.group * z.blocks) + 1;
    heads = std::clamp<int64_t>(std::max(c.pack_bytes / bytes, busy), 1, total);
    for (int map = 0; map < z.maps; map++) {
      norms[map].resize(heads * z.tiles);
      if (packs(map)) keys[map].resize(heads * keys_padded * (map ? c.d2 : c.d1));
    }
    values.resize(heads * keys_padded * c.dv);
    for (int64_t g0 = 0; g0 < total; g0 += heads) {
      const int64_t n = std::min(heads, total - g0);
      share<Buffer<Op>>(
          n * z.tiles, [&] { return Buffer<Op>(kTile * z.d_max); },
          [&](Buffer<Op>& scratch, int64_t i) { pack(g0, i / z.tiles, i % z.tiles, scratch); });
      // The longest rows first: they set the pace when the map is causal.
      share<Worker>(
          n * z.group * z.blocks, [&] { return make_worker(); },
          [&](Worker& w, int64_t i) {
            const int64_t block = z.blocks - 1 - i / (n * z.group), head = i % (n * z.group);
            rows(w, g0 + head / z.group, head / z.group, head % z.group, Rows(c, kTile, block));
          });
    }
  }

  // Keys are packed unless the products take them where they lie, or both maps share them.
  bool packs(int map) const { return G::kKeysTransposed && !(map && same_keys(c)); }

  void pack(int64_t g0, int64_t local, int64_t t, Buffer<Op>& scratch) {
    const Tile tile(c, kTile, g0 + local, t);
    const int64_t at = (local * z.tiles + t) * kTile;
    for (int map = 0; map < z.maps; map++) {
      const View& k = map ? c.k2 : c.k1;
      const int64_t d = map ? c.d2 : c.d1;
      const N* from = at_row<N>(k, tile.b, tile.h, tile.first);
      float norm = 0.0f;
      for (int64_t i = 0; i < tile.count; i++)
        norm = std::max(norm, square_norm(from + i * k.row, d));
      norms[map].get()[local * z.tiles + t] = norm;
      if (packs(map))
        pack_keys<G>(from, k.row, tile.count, tile.padded, d, keys[map].get() + at * d,
                     scratch.get());
    }
    pack_rows<G>(at_row<N>(c.v, tile.b, tile.h, tile.first), c.v.row, tile.count, tile.padded, c.dv,
                 values.get() + at * c.dv, scratch.get());
  }

  // Whether |c q k| <= kSafePower for every row and key of a block, by their norms. (A NaN among
  // them may pass or not: it spoils its row either way.)
  static bool bounded(const Op* q, const Rows& rows, int64_t d, const float* key_norms,
                      float scale) {
    float q_norm = 0.0f, k_norm = 0.0f;
    for (int64_t r = 0; r < rows.count; r++) q_norm = std::max(q_norm, square_norm(q + r * d, d));
    for (int64_t t = 0; t < rows.tiles(); t++) k_norm = std::max(k_norm, key_norms[t]);
    return std::sqrt(q_norm) * std::sqrt(k_norm) * scale <= kSafePower;
  }

  // Scores of one map, exponentiated against the running row maximum m. Kept for later: the
  // maximum each tile was taken against, the final one, and the row's weight in the combined map
  // (1 / l, or -lam / l of the second map, l being the sum).
  void score(Worker& w, int map, int64_t local, const Rows& rows, int64_t b, int64_t h) {
    const int64_t d = map ? c.d2 : c.d1, hk = h / z.group;
    const View &q = map ? c.q2 : c.q1, &k = map ? c.k2 : c.k1;
    const float scale = static_cast<float>(map ? c.scale2 : c.scale1) * kLog2e;
    const Op* packed = keys[map && packs(map)].get() + local * z.tiles * kTile * d;
    copy_rows(at_row<N>(q, b, h, rows.first), q.row, rows.count, rows.padded, d, w.q.get());
    const bool safe =
        !c.sink.data && bounded(w.q.get(), rows, d, norms[map].get() + local * z.tiles, scale);
    const float sink = c.sink.data ? *at_row<float>(c.sink, 0, h, 0) * kLog2e : -kInf;
    float *m = w.m[map].get(), *sums = w.sums.get();
    std::fill_n(m, rows.count, safe ? 0.0f : sink);
    std::fill_n(sums, rows.count * VL, 0.0f);
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t), first = t * kTile;
      Op* e = w.e[map].get() + t * rows.padded * kTile;
      float *s = w.s.get(), *m_tile = w.m_tile[map].get() + t * c.block_rows;
      if constexpr (G::kKeysTransposed) {
        G::nt(rows.padded, width, d, w.q.get(), d, packed + first * d, kTile, s);
      } else {
        const int64_t n = std::min(width, c.Tk - first);
        G::nt(rows.padded, n, d, w.q.get(), d, at_row<Op>(k, b, hk, first), k.row, s);
      }
      for (int64_t r = 0; r < rows.count; r++) {
        int64_t n = std::clamp<int64_t>(rows.keys_of(c, r) - first, 0, width);
        if (!safe && n) {
          const float highest = row_max(s + r * kTile, n, scale);
          if (highest > m[r]) {
            (Vec::loadu(sums + r * VL) * Vec(std::exp2(m[r] - highest))).store(sums + r * VL);
            m[r] = highest;
          }
          if (m[r] == -kInf) n = 0;  // nothing but -inf so far
        }
        accumulate(sums + r * VL,
                   row_exp2<false>(s + r * kTile, e + r * kTile, n, width, scale, m[r]));
        m_tile[r] = m[r];
      }
    }
    auto* lse = at_row<float>(map ? c.lse2 : c.lse1, b, h, rows.first);
    for (int64_t r = 0; r < rows.count; r++) {
      float l = sum_lanes(Vec::loadu(sums + r * VL));
      if (c.sink.data) l += std::exp2(sink - m[r]);
      lse[r] = rows.keys_of(c, r) || c.sink.data ? m[r] + std::log2(l) : -kInf;
      w.weight[map].get()[r] = (map ? -*at_row<float>(c.lam, b, h, rows.first + r) : 1.0f) / l;
    }
  }

  void rows(Worker& w, int64_t g, int64_t local, int64_t head, const Rows& rows) {
    const int64_t b = g / c.Hkv, h = g % c.Hkv * z.group + head;
    for (int map = 0; map < z.maps; map++) score(w, map, local, rows, b, h);
    const Op* v = values.get() + local * z.tiles * kTile * c.dv;
    for (int64_t first = 0; first < rows.tiles(); first += kJoin) {
      const int64_t last = std::min(first + kJoin, rows.tiles());
      for (int64_t t = first; t < last; t++)
        for (int64_t r = 0; r < rows.count; r++)
          combine(w, t, r, w.a.get() + r * kJoin * kTile + (t - first) * kTile, rows);
      const int64_t width = std::min(kJoin * kTile, rows.columns - first * kTile);
      G::nn(rows.padded, c.dv, width, w.a.get(), kJoin * kTile, v + first * kTile * c.dv, c.dv,
            w.o.get(), c.dv, first > 0);
    }
    for (int64_t r = 0; r < rows.count; r++) {
      auto* out = at_row<N>(c.out, b, h, rows.first + r);
      if (rows.keys_of(c, r)) convert_row(w.o.get() + r * c.dv, out, c.dv);
      else std::memset(out, 0, c.dv * sizeof(N));
    }
  }

  // One row of one tile of the map that meets V: e1 / l1 - lam e2 / l2.
  ANTIPHASE_INLINE void combine(Worker& w, int64_t t, int64_t r, Op* a, const Rows& rows) {
    auto factor = [&](int map) {
      const float past = w.m_tile[map].get()[t * c.block_rows + r], m = w.m[map].get()[r];
      return w.weight[map].get()[r] * (past == m ? 1.0f : std::exp2(past - m));
    };
    const int64_t at = (t * rows.padded + r) * kTile, width = rows.width(t);
    const Op* e1 = w.e[0].get() + at;
    const Vec f1(factor(0));
    Vec x0, x1, y0, y1;
    if (z.maps == 1) {
      for (int64_t i = 0; i < width; i += 2 * VL) {
        load_map(e1 + i, x0, x1);
        store_map(a + i, x0 * f1, x1 * f1);
      }
      return;
    }
    const Op* e2 = w.e[1].get() + at;
    const Vec f2(factor(1));
    for (int64_t i = 0; i < width; i += 2 * VL) {
      load_map(e1 + i, x0, x1), load_map(e2 + i, y0, y1);
      store_map(a + i, at::vec::fmadd(y0, f2, x0 * f1), at::vec::fmadd(y1, f2, x1 * f1));
    }
  }
};

}  // namespace antiphase
