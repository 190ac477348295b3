// The forward pass. For a block of query rows, the scores of both maps are exponentiated tile by
// tile. When both row sums are known, the maps are combined and applied to V once.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"

namespace antiphase {

template <class scalar_t, class Gemm>
struct Forward {
  using operand_t = typename Gemm::operand_t;
  static constexpr int64_t kTile = Gemm::kTile;
  static constexpr int64_t kTilesPerProduct = 2;  // of the combined map with V
  const KernelArguments& args;
  const Sizes sizes;
  int64_t heads = 0;  // key/value heads packed at a time
  Buffer<operand_t> keys[2], values;
  Buffer<float> norms[2];  // the largest squared norm of a key, per tile

  explicit Forward(const KernelArguments& args) : args(args), sizes(args, kTile) {}

  struct Workspace {
    Buffer<operand_t> q, e[2], a;              // queries, 2^(score - m) per tile, combined map A
    Buffer<float> s, o, sums;                  // a tile of scores, the output, row sums per lane
    Buffer<float> m_tile[2], m[2], weight[2];  // per row, see compute_scores()
    ReleaseGuard<Gemm> release;
  };

  Workspace make_workspace() const {
    const int64_t R = round_up(args.block_rows, kRowAlign);
    Workspace ws;
    ws.q.resize(R * sizes.d_max);
    ws.a.resize(R * kTilesPerProduct * kTile);
    ws.o.resize(R * args.dv);
    ws.s.resize(R * kTile);
    ws.sums.resize(R * VL);
    for (int map = 0; map < sizes.maps; map++) {
      ws.e[map].resize(R * kTile * sizes.tiles);
      ws.m_tile[map].resize(R * sizes.tiles), ws.m[map].resize(R), ws.weight[map].resize(R);
    }
    std::memset(ws.a.get(), 0, R * kTilesPerProduct * kTile * sizeof(operand_t));
    return ws;
  }

  // Keys and values are packed for a few heads at a time: enough work for all threads, little
  // memory.
  void run() {
    constexpr int64_t kItemsPerThread = 8;
    const int64_t total = args.B * args.Hkv, keys_padded = sizes.tiles * kTile;
    const int64_t width = args.d1 + (sizes.maps == 2 ? args.d2 : 0) + args.dv;
    const int64_t bytes = keys_padded * width * static_cast<int64_t>(sizeof(operand_t));
    const int64_t busy_heads =
        kItemsPerThread * at::get_num_threads() / (sizes.group * sizes.blocks) + 1;
    heads = std::clamp<int64_t>(std::max(args.pack_bytes / bytes, busy_heads), 1, total);
    for (int map = 0; map < sizes.maps; map++) {
      norms[map].resize(heads * sizes.tiles);
      if (packs(map)) keys[map].resize(heads * keys_padded * (map ? args.d2 : args.d1));
    }
    values.resize(heads * keys_padded * args.dv);
    for (int64_t kv0 = 0; kv0 < total; kv0 += heads) {
      const int64_t n = std::min(heads, total - kv0);
      parallel_items<Buffer<operand_t>>(
          n * sizes.tiles, [&] { return Buffer<operand_t>(kTile * sizes.d_max); },
          [&](Buffer<operand_t>& scratch, int64_t i) {
            pack(kv0, i / sizes.tiles, i % sizes.tiles, scratch);
          });
      // The longest rows first: with a causal mask they take the most time.
      parallel_items<Workspace>(
          n * sizes.group * sizes.blocks, [&] { return make_workspace(); },
          [&](Workspace& ws, int64_t i) {
            const int64_t block = sizes.blocks - 1 - i / (n * sizes.group),
                          head = i % (n * sizes.group);
            compute_block(ws, kv0 + head / sizes.group, head / sizes.group, head % sizes.group,
                          RowBlock(args, kTile, block));
          });
    }
  }

  // Keys are packed unless the product reads them in place, or both maps share them.
  bool packs(int map) const { return Gemm::kKeysTransposed && !(map && same_keys(args)); }

  void pack(int64_t kv0, int64_t local, int64_t t, Buffer<operand_t>& scratch) {
    const KeyTile tile(args, kTile, kv0 + local, t);
    const int64_t at = (local * sizes.tiles + t) * kTile;
    for (int map = 0; map < sizes.maps; map++) {
      const TensorView& k = map ? args.k2 : args.k1;
      const int64_t d = map ? args.d2 : args.d1;
      const scalar_t* from = at_row<scalar_t>(k, tile.b, tile.h, tile.first);
      float norm = 0.0f;
      for (int64_t i = 0; i < tile.count; i++)
        norm = std::max(norm, square_norm(from + i * k.row, d));
      norms[map].get()[local * sizes.tiles + t] = norm;
      if (packs(map))
        pack_keys<Gemm>(from, k.row, tile.count, tile.padded, d, keys[map].get() + at * d,
                        scratch.get());
    }
    pack_rows<Gemm>(at_row<scalar_t>(args.v, tile.b, tile.h, tile.first), args.v.row, tile.count,
                    tile.padded, args.dv, values.get() + at * args.dv, scratch.get());
  }

  // Whether the norms bound |scale q k| by kMaxSafeExponent for every row and key of a block. (With
  // a NaN among them the answer does not matter: its row is NaN either way.)
  static bool scores_are_bounded(const operand_t* q, const RowBlock& rows, int64_t d,
                                 const float* key_norms, float scale) {
    float q_norm = 0.0f, k_norm = 0.0f;
    for (int64_t r = 0; r < rows.count; r++) q_norm = std::max(q_norm, square_norm(q + r * d, d));
    for (int64_t t = 0; t < rows.tiles(); t++) k_norm = std::max(k_norm, key_norms[t]);
    return std::sqrt(q_norm) * std::sqrt(k_norm) * scale <= kMaxSafeExponent;
  }

  // Compute the scores of one map and exponentiate them relative to the running row maximum m. Kept
  // per row: the maximum that each tile used (m_tile), the final maximum (m), and the weight of the
  // row in the combined map (1 / l for the signal map, -lam / l for the noise map, l the row sum).
  void compute_scores(Workspace& ws, int map, int64_t local, const RowBlock& rows, int64_t b,
                      int64_t h) {
    const int64_t d = map ? args.d2 : args.d1, h_kv = h / sizes.group;
    const TensorView &q = map ? args.q2 : args.q1, &k = map ? args.k2 : args.k1;
    const float scale = static_cast<float>(map ? args.scale2 : args.scale1) * kLog2e;
    const operand_t* packed = keys[map && packs(map)].get() + local * sizes.tiles * kTile * d;
    copy_rows(at_row<scalar_t>(q, b, h, rows.first), q.row, rows.count, rows.padded, d, ws.q.get());
    const bool safe =
        !args.sink.data &&
        scores_are_bounded(ws.q.get(), rows, d, norms[map].get() + local * sizes.tiles, scale);
    const float sink = args.sink.data ? *at_row<float>(args.sink, 0, h, 0) * kLog2e : -kInf;
    float *m = ws.m[map].get(), *sums = ws.sums.get();
    std::fill_n(m, rows.count, safe ? 0.0f : sink);
    std::fill_n(sums, rows.count * VL, 0.0f);
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t), first = t * kTile;
      operand_t* e = ws.e[map].get() + t * rows.padded * kTile;
      float *s = ws.s.get(), *m_tile = ws.m_tile[map].get() + t * args.block_rows;
      if constexpr (Gemm::kKeysTransposed) {
        Gemm::nt(rows.padded, width, d, ws.q.get(), d, packed + first * d, kTile, s);
      } else {
        const int64_t n = std::min(width, args.Tk - first);
        Gemm::nt(rows.padded, n, d, ws.q.get(), d, at_row<operand_t>(k, b, h_kv, first), k.row, s);
      }
      for (int64_t r = 0; r < rows.count; r++) {
        int64_t n = std::clamp<int64_t>(rows.keys_of(args, r) - first, 0, width);
        if (!safe && n) {
          const float highest = row_max(s + r * kTile, n, scale);
          if (highest > m[r]) {
            (Vec::loadu(sums + r * VL) * Vec(std::exp2(m[r] - highest))).store(sums + r * VL);
            m[r] = highest;
          }
          if (m[r] == -kInf) n = 0;  // only -inf so far
        }
        add_lanes(sums + r * VL,
                  row_exp2<false>(s + r * kTile, e + r * kTile, n, width, scale, m[r]));
        m_tile[r] = m[r];
      }
    }
    auto* lse = at_row<float>(map ? args.lse2 : args.lse1, b, h, rows.first);
    for (int64_t r = 0; r < rows.count; r++) {
      float l = sum_lanes(Vec::loadu(sums + r * VL));
      if (args.sink.data) l += std::exp2(sink - m[r]);
      lse[r] = rows.keys_of(args, r) || args.sink.data ? m[r] + std::log2(l) : -kInf;
      ws.weight[map].get()[r] = (map ? -*at_row<float>(args.lam, b, h, rows.first + r) : 1.0f) / l;
    }
  }

  // The output of one block of query rows of one head; `local` is its key/value head among those
  // packed.
  void compute_block(Workspace& ws, int64_t kv, int64_t local, int64_t head, const RowBlock& rows) {
    const int64_t b = kv / args.Hkv, h = kv % args.Hkv * sizes.group + head;
    for (int map = 0; map < sizes.maps; map++) compute_scores(ws, map, local, rows, b, h);
    const operand_t* v = values.get() + local * sizes.tiles * kTile * args.dv;
    for (int64_t first = 0; first < rows.tiles(); first += kTilesPerProduct) {
      const int64_t last = std::min(first + kTilesPerProduct, rows.tiles());
      for (int64_t t = first; t < last; t++)
        for (int64_t r = 0; r < rows.count; r++)
          combine(ws, t, r, ws.a.get() + r * kTilesPerProduct * kTile + (t - first) * kTile, rows);
      const int64_t width = std::min(kTilesPerProduct * kTile, rows.columns - first * kTile);
      Gemm::nn(rows.padded, args.dv, width, ws.a.get(), kTilesPerProduct * kTile,
               v + first * kTile * args.dv, args.dv, ws.o.get(), args.dv, first > 0);
    }
    for (int64_t r = 0; r < rows.count; r++) {
      auto* out = at_row<scalar_t>(args.out, b, h, rows.first + r);
      if (rows.keys_of(args, r))
        convert_row(ws.o.get() + r * args.dv, out, args.dv);
      else
        std::memset(out, 0, args.dv * sizeof(scalar_t));
    }
  }

  // One row of one tile of the combined map: e1 / l1 - lam e2 / l2, corrected for the final
  // maximum.
  ANTIPHASE_INLINE void combine(Workspace& ws, int64_t t, int64_t r, operand_t* a,
                                const RowBlock& rows) {
    auto factor = [&](int map) {
      const float used = ws.m_tile[map].get()[t * args.block_rows + r], m = ws.m[map].get()[r];
      return ws.weight[map].get()[r] * (used == m ? 1.0f : std::exp2(used - m));
    };
    const int64_t at = (t * rows.padded + r) * kTile, width = rows.width(t);
    const operand_t* e1 = ws.e[0].get() + at;
    const Vec f1(factor(0));
    Vec x0, x1, y0, y1;
    if (sizes.maps == 1) {
      for (int64_t i = 0; i < width; i += 2 * VL) {
        load_map(e1 + i, x0, x1);
        store_map(a + i, x0 * f1, x1 * f1);
      }
      return;
    }
    const operand_t* e2 = ws.e[1].get() + at;
    const Vec f2(factor(1));
    for (int64_t i = 0; i < width; i += 2 * VL) {
      load_map(e1 + i, x0, x1), load_map(e2 + i, y0, y1);
      store_map(a + i, at::vec::fmadd(y0, f2, x0 * f1), at::vec::fmadd(y1, f2, x1 * f1));
    }
  }
};

}  // namespace antiphase
