// The backward pass, from the inputs and the saved row normalisers.
// With P1, P2 the maps, A = P1 - lam P2 and dA = dO V^T:
//   D1 = rowsum(P1 dA), D2 = rowsum(P2 dA), dlam = -D2,
//   dS1 = scale1 P1 (dA - D1), dS2 = -lam scale2 P2 (dA - D2),
//   dQ = dS K, dK = dS^T Q, dV = A^T dO;  dsink = -p_sink D1.

#pragma once

#include "abi.h"
#include "packing.h"
#include "parallel.h"

namespace antiphase {

template <class N, class G>
struct Backward {
  using Op = typename G::Op;
  static constexpr int64_t kTile = G::kTile;
  const Call& c;
  const Sizes z;
  int64_t slices = 1;  // parts of a key head's query rows, each with gradient sums of its own
  Buffer<float> sums;  // [key head, slice, (dk1 | dk2 | dv), tile, channel, key]

  explicit Backward(const Call& call) : c(call), z(call, kTile) {}

  int64_t channels() const { return c.d1 + (z.maps == 2 ? c.d2 : 0) + c.dv; }
  int64_t sums_size() const { return z.tiles * kTile * channels(); }
  int last_keys() const { return z.maps == 2 && !same_keys(c); }  // index of the last packed keys
  static int64_t ld_keys(int64_t d) { return G::kKeysTransposed ? kTile : d; }

  struct Worker {
    Buffer<Op> k_cols[2], k_rows[2], v_cols;    // packed keys and values of a head
    Buffer<Op> q[2], q_t[2], g, g_t;            // the block's queries and dO
    Buffer<Op> p[2], a, ds[2], pairs, scratch;  // maps of the block, products' operands
    Buffer<float> s, da, dq[2], wide, sums;
    Buffer<float> d[2], sums_d[2];  // D of each row, and the same lane by lane
    int64_t packed = -1;            // the key head that is packed
    Release<G> release;
  };

  Worker make_worker() const {
    const int64_t R = round_up(c.block_rows, kRowGrain), keys = z.tiles * kTile;
    Worker w;
    for (int map = 0; map < z.maps; map++) {
      const int64_t d = map ? c.d2 : c.d1;
      if (map <= last_keys()) w.k_cols[map].resize(keys * d), w.k_rows[map].resize(keys * d);
      w.q[map].resize(R * d), w.q_t[map].resize(R * d), w.dq[map].resize(R * d);
      w.p[map].resize(R * keys), w.ds[map].resize(R * kTile);
      w.d[map].resize(R), w.sums_d[map].resize(R * VL);
    }
    w.v_cols.resize(keys * c.dv);
    w.g.resize(R * c.dv), w.g_t.resize(R * c.dv);
    w.a.resize(R * kTile), w.pairs.resize(G::kPaired ? R * kTile : 0);
    w.s.resize(R * kTile), w.da.resize(R * keys), w.wide.resize(2 * R * z.d_max);
    w.scratch.resize(kTile * z.d_max);
    if (slices == 1) w.sums.resize(sums_size());
    return w;
  }

  void run() {
    const int64_t total = c.B * c.Hkv, threads = at::get_num_threads(),
                  units = z.group * z.blocks;
    slices = std::clamp<int64_t>((threads + total - 1) / total, 1, units);
    if (slices > 1) sums.resize(total * slices * sums_size());
    share<Worker>(
        total * slices, [&] { return make_worker(); },
        [&](Worker& w, int64_t i) {
          const int64_t g = i / slices, slice = i % slices;
          if (w.packed != g) pack(w, g);
          float* mine = slices == 1 ? w.sums.get() : sums.get() + i * sums_size();
          std::fill_n(mine, sums_size(), 0.0f);
          // Strided, so that every slice gets short and long rows alike.
          for (int64_t u = slice; u < units; u += slices)
            rows(w, g, u / z.blocks, Rows(c, kTile, u % z.blocks), mine);
          if (slices == 1) write(g, mine, w.wide.get());
        });
    if (slices == 1) return;
    share<Buffer<float>>(
        total, [&] { return Buffer<float>(kRowGrain * z.d_max); },
        [&](Buffer<float>& scratch, int64_t g) {
          float* first = sums.get() + g * slices * sums_size();
          for (int64_t s = 1; s < slices; s++)
            for (int64_t i = 0; i < sums_size(); i++) first[i] += first[s * sums_size() + i];
          write(g, first, scratch.get());
        });
  }

  void pack(Worker& w, int64_t g) {
    w.packed = g;
    for (int64_t t = 0; t < z.tiles; t++) {
      const Tile tile(c, kTile, g, t);
      for (int map = 0; map <= last_keys(); map++) {
        const View& k = map ? c.k2 : c.k1;
        const int64_t d = map ? c.d2 : c.d1;
        const N* from = at_row<N>(k, tile.b, tile.h, tile.first);
        pack_keys<G>(from, k.row, tile.count, tile.padded, d, w.k_cols[map].get() + t * kTile * d,
                     w.scratch.get());
        pack_rows<G>(from, k.row, tile.count, tile.padded, d, w.k_rows[map].get() + t * kTile * d,
                     w.scratch.get());
      }
      pack_keys<G>(at_row<N>(c.v, tile.b, tile.h, tile.first), c.v.row, tile.count, tile.padded,
                   c.dv, w.v_cols.get() + t * kTile * c.dv, w.scratch.get());
    }
  }

  void rows(Worker& w, int64_t g, int64_t head, const Rows& rows, float* mine) {
    const int64_t b = g / c.Hkv, h = g % c.Hkv * z.group + head;
    recompute(w, rows, b, h);
    float* dk[2] = {mine, mine + z.tiles * kTile * c.d1};
    float* dv = mine + z.tiles * kTile * (channels() - c.dv);
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t);
      differentiate(w, t, rows, b, h);
      for (int map = 0; map < z.maps; map++) {
        const int64_t d = map ? c.d2 : c.d1;
        const Op* keys = w.k_rows[std::min(map, last_keys())].get() + t * kTile * d;
        G::nn(rows.padded, d, width, w.ds[map].get(), kTile, keys, d, w.dq[map].get(), d, t > 0);
        G::nn(d, width, rows.padded, w.q_t[map].get(), rows.padded,
              as_right(w, w.ds[map].get(), rows, width), kTile, dk[map] + t * kTile * d, kTile,
              true);
      }
      G::nn(c.dv, width, rows.padded, w.g_t.get(), rows.padded,
            as_right(w, w.a.get(), rows, width), kTile, dv + t * kTile * c.dv, kTile, true);
    }
    for (int map = 0; map < z.maps; map++) {
      const int64_t d = map ? c.d2 : c.d1;
      for (int64_t r = 0; r < rows.count; r++) {
        N* dq = at_row<N>(map ? c.dq2 : c.dq1, b, h, rows.first + r);
        if (rows.keys_of(c, r)) convert_row(w.dq[map].get() + r * d, dq, d);
        else std::memset(dq, 0, d * sizeof(N));
      }
    }
  }

  // Both maps and dA of the whole block, and the row sums D.
  void recompute(Worker& w, const Rows& rows, int64_t b, int64_t h) {
    pack_queries(at_row<N>(c.dout, b, h, rows.first), c.dout.row, rows.count, rows.padded, c.dv,
                 w.g.get(), w.g_t.get(), w.wide.get());
    for (int map = 0; map < z.maps; map++) {
      const View& q = map ? c.q2 : c.q1;
      pack_queries(at_row<N>(q, b, h, rows.first), q.row, rows.count, rows.padded,
                   map ? c.d2 : c.d1, w.q[map].get(), w.q_t[map].get(), w.wide.get());
      std::fill_n(w.sums_d[map].get(), rows.padded * VL, 0.0f);
    }
    for (int64_t t = 0; t < rows.tiles(); t++) {
      const int64_t width = rows.width(t), at = t * rows.padded * kTile;
      float* da = w.da.get() + at;
      G::nt(rows.padded, width, c.dv, w.g.get(), c.dv, w.v_cols.get() + t * kTile * c.dv,
            ld_keys(c.dv), da);
      for (int map = 0; map < z.maps; map++) {
        const int64_t d = map ? c.d2 : c.d1;
        const float scale = static_cast<float>(map ? c.scale2 : c.scale1) * kLog2e;
        const float* lse = at_row<float>(map ? c.lse2 : c.lse1, b, h, rows.first);
        Op* p = w.p[map].get() + at;
        float* s = w.s.get();
        const Op* keys = w.k_cols[std::min(map, last_keys())].get() + t * kTile * d;
        G::nt(rows.padded, width, d, w.q[map].get(), d, keys, ld_keys(d), s);
        for (int64_t r = 0; r < rows.count; r++) {
          const int64_t n = std::clamp<int64_t>(rows.keys_of(c, r) - t * kTile, 0, width);
          accumulate(w.sums_d[map].get() + r * VL,
                     row_exp2<true>(s + r * kTile, p + r * kTile, n, width, scale, lse[r],
                                    da + r * kTile));
        }
      }
    }
    for (int64_t r = 0; r < rows.count; r++) {
      const int64_t i = rows.first + r;
      for (int map = 0; map < z.maps; map++)
        w.d[map].get()[r] = sum_lanes(Vec::loadu(w.sums_d[map].get() + r * VL));
      if (z.maps == 2) *at_row<float>(c.dlam, b, h, i) = -w.d[1].get()[r];
      if (c.sink.data) {
        const float p_sink = std::exp2(*at_row<float>(c.sink, 0, h, 0) * kLog2e -
                                       *at_row<float>(c.lse1, b, h, i));
        *at_row<float>(c.dsink, b, h, i) = -p_sink * w.d[0].get()[r];
      }
    }
  }

  // A, dS1 and dS2 of one tile, as operands; padded rows are zero, they meet the keys' gradients.
  void differentiate(Worker& w, int64_t t, const Rows& rows, int64_t b, int64_t h) {
    const int64_t width = rows.width(t);
    for (int64_t r = 0; r < rows.count; r++) {
      const int64_t at = (t * rows.padded + r) * kTile;
      const float* da = w.da.get() + at;
      const Op *p1 = w.p[0].get() + at, *p2 = z.maps == 2 ? w.p[1].get() + at : nullptr;
      Op *a = w.a.get() + r * kTile, *ds1 = w.ds[0].get() + r * kTile;
      const Vec scale1(static_cast<float>(c.scale1)), D1(w.d[0].get()[r]);
      Vec x0, x1, y0, y1, g0, g1;
      if (z.maps == 1) {
        for (int64_t i = 0; i < width; i += 2 * VL) {
          load_map(p1 + i, x0, x1), load2(da + i, g0, g1);
          store_map(a + i, x0, x1);
          store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        }
        continue;
      }
      Op* ds2 = w.ds[1].get() + r * kTile;
      const float lam = *at_row<float>(c.lam, b, h, rows.first + r);
      const Vec minus_lam(-lam), scale2(-lam * static_cast<float>(c.scale2)), D2(w.d[1].get()[r]);
      for (int64_t i = 0; i < width; i += 2 * VL) {
        load_map(p1 + i, x0, x1), load_map(p2 + i, y0, y1), load2(da + i, g0, g1);
        store_map(a + i, at::vec::fmadd(y0, minus_lam, x0), at::vec::fmadd(y1, minus_lam, x1));
        store_map(ds1 + i, x0 * scale1 * (g0 - D1), x1 * scale1 * (g1 - D1));
        store_map(ds2 + i, y0 * scale2 * (g0 - D2), y1 * scale2 * (g1 - D2));
      }
    }
    const int64_t from = rows.count * kTile, n = (rows.padded - rows.count) * kTile * sizeof(Op);
    std::memset(w.a.get() + from, 0, n);
    for (int map = 0; map < z.maps; map++) std::memset(w.ds[map].get() + from, 0, n);
  }

  // A tile of rows as a right operand, in pairs where the micro-kernel wants them.
  static const Op* as_right(Worker& w, const Op* tile, const Rows& rows, int64_t width) {
    if constexpr (!G::kPaired) return tile;
    for (int64_t r = 0; r < rows.padded; r += 2)
      pair_rows(tile + r * kTile, tile + (r + 1) * kTile, w.pairs.get() + r * kTile, width);
    return w.pairs.get();
  }

  void write(int64_t g, const float* mine, float* scratch) {
    write_one(c.dk1, g, mine, c.d1, scratch);
    if (z.maps == 2) write_one(c.dk2, g, mine + z.tiles * kTile * c.d1, c.d2, scratch);
    write_one(c.dv_, g, mine + z.tiles * kTile * (channels() - c.dv), c.dv, scratch);
  }

  // Gradient sums are [channel, key] a tile; turn them over, a few keys at a time.
  void write_one(const View& to, int64_t g, const float* from, int64_t d, float* rows) {
    for (int64_t t = 0; t < z.tiles; t++) {
      const Tile tile(c, kTile, g, t);
      for (int64_t j = 0; j < tile.padded; j += kRowGrain) {
        transpose_words(from + t * kTile * d + j, kTile, rows, d, d, kRowGrain);
        for (int64_t i = 0; i < kRowGrain; i++) {
          const int64_t key = woven<Op>(j + i);
          if (key < tile.count)
            convert_row(rows + i * d, at_row<N>(to, tile.b, tile.h, tile.first + key), d);
        }
      }
    }
  }
};

}  // namespace antiphase
