// From the products q k^T of one tile to the scores of a row: soft-cap, mask, window; and dropout.

#pragma once

#include "packing.h"
#include "visible.h"

namespace antiphase {

// The columns [from, to) of a span that a row attends to; none if from >= to.
struct Columns {
  int64_t from, to;
};

// Makes scores out of products, row by row. Scores stay in units before `scale`.
class Scores {
 public:
  Scores(const KernelArguments& args, const Mask& mask)
      : args(args),
        mask(mask),
        keys_(args.block_rows),
        seen_(args.block_rows),
        bias_(mask.given() ? 2 * kMaxTile : 0) {}

  // Start a block of rows of one head.
  void start(int64_t b, int64_t h, const RowBlock& rows) {
    b_ = b, h_ = h, first_row_ = rows.first;
    for (int64_t r = 0; r < rows.count; r++) {
      keys_[r] = keys_of_row(args, b, rows.first + r);
      seen_[r] = !mask.given() && keys_[r].any();
    }
  }

  // Start a span of keys; `key` is the first.
  void start(const Span& span, int64_t key) {
    key_ = key, masked_ = span.masked, span_width_ = span.width;
    width_ = std::min(span.width, args.Tk - key);
    if (masked_ && mask.same_rows())
      for (int map = 0; map < (args.q2.data ? 2 : 1); map++) read_bias(map, 0);
  }

  // Whether row r of the block attends to a key of the spans so far.
  bool seen(int64_t r) const { return seen_[r]; }

  // Turn the products of row r of the block into scores, in place. `slope` receives the derivative
  // of the soft-cap where there is one.
  ANTIPHASE_INLINE Columns row(int map, int64_t r, float* s, float* slope = nullptr) {
    auto column = [&](int64_t key) { return std::clamp<int64_t>(key - key_, 0, width_); };
    const RowKeys& keys = keys_[r];
    Columns columns{column(keys.first), column(keys.last)};
    if (args.softcap) cap(map, s, slope);
    if (keys.kept < keys.kept_last) columns = keep(columns, column(keys.kept),
                                                   column(keys.kept_last), s);
    if (mask.given() && columns.from < columns.to) {
      apply_mask(map, r, s);
      if (!seen_[r])  // not by a key between the kept ones and the window
        seen_[r] = attends(map, column(keys.first), column(keys.last)) ||
                   attends(map, column(keys.kept), column(keys.kept_last));
    }
    return columns;
  }

 private:
  static constexpr int64_t kMaxTile = 256;

  // Add the kept columns; those between them and the window are not visible.
  static Columns keep(const Columns& columns, int64_t kept, int64_t kept_last, float* s) {
    if (kept >= kept_last) return columns;
    std::fill(s + kept_last, s + std::max(columns.from, kept_last), -kInf);
    return {kept, std::max(columns.to, kept_last)};
  }
  void apply_mask(int map, int64_t r, float* s) {
    if (!masked_) return;
    if (!mask.same_rows()) read_bias(map, first_row_ + r);
    for (int64_t j = 0; j < width_; j += VL)
      (Vec::loadu(s + j) + Vec::loadu(bias(map) + j)).store(s + j);
  }
  bool attends(int map, int64_t from, int64_t to) const {
    return from < to && (!masked_ || row_max(bias(map), from, to) != -kInf);
  }
  float* bias(int map) const { return bias_.get() + map * kMaxTile; }
  void read_bias(int map, int64_t i) {
    const double scale = map ? args.scale2 : args.scale1;
    mask.bias(b_, h_, i, key_, width_, static_cast<float>(scale), bias(map));
    std::fill(bias(map) + width_, bias(map) + kMaxTile, 0.0f);
  }
  void cap(int map, float* s, float* slope) const {
    const double scale = map ? args.scale2 : args.scale1;
    const Vec in(static_cast<float>(scale / args.softcap)),
        out(static_cast<float>(args.softcap / scale)), one(1.0f);
    for (int64_t j = 0; j < width_; j += VL) {
      const Vec t = (Vec::loadu(s + j) * in).tanh();
      (t * out).store(s + j);
      if (slope) (one - t * t).store(slope + j);
    }
    if (slope) std::fill(slope + width_, slope + span_width_, 0.0f);
  }

  const KernelArguments& args;
  const Mask& mask;
  std::vector<RowKeys> keys_;  // of the block's rows
  std::vector<uint8_t> seen_;
  Buffer<float> bias_;  // of both maps
  int64_t b_ = 0, h_ = 0, first_row_ = 0, key_ = 0, width_ = 0, span_width_ = 0;
  bool masked_ = false;
};

// Dropout by counter: whether an entry of the combined map is kept depends on the seed, batch, head,
// row and key alone. The hash is that of `ops/arguments.py`.
class Dropout {
 public:
  explicit Dropout(const KernelArguments& args)
      : args(args), factor_(static_cast<float>(16777216.0 / (16777216 - args.dropout))) {
    const auto low = static_cast<uint32_t>(args.seed),
               high = static_cast<uint32_t>(static_cast<uint64_t>(args.seed) >> 32);
    seed_ = mix(mix(low ^ 0x9e3779b9u) + high);
  }

  explicit operator bool() const { return args.dropout > 0; }

  uint32_t row(int64_t b, int64_t h, int64_t i) const {
    const uint32_t head = mix(seed_ + static_cast<uint32_t>(b) * 0x85ebca6bu +
                              static_cast<uint32_t>(h) * 0xc2b2ae35u);
    return mix(head + static_cast<uint32_t>(i + args.Tk - args.Tq));
  }

  // The factors of the keys `key`.. `key` + VL - 1: 0, or 1 / (1 - p).
  Vec factors(uint32_t row, int64_t key) const {
    Int x = Int::arange(static_cast<int32_t>(key), 1) * Int(static_cast<int32_t>(0x9e3779b9u));
    x = mix(x ^ Int(static_cast<int32_t>(row)));
    const Int kept = logical_shift<8>(x) >= Int(static_cast<int32_t>(args.dropout));
    return Vec::blendv(Vec(0.0f), Vec(factor_), at::vec::cast<float>(kept));
  }

  void apply(uint32_t row, int64_t key, float* x, int64_t n) const {
    for (int64_t j = 0; j < n; j += VL) (Vec::loadu(x + j) * factors(row, key + j)).store(x + j);
  }

 private:
  static uint32_t mix(uint32_t x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ (x >> 16);
  }
  template <int kBits>
  static Int logical_shift(const Int& x) {
    return (x >> Int(kBits)) & Int(static_cast<int32_t>(0xffffffffu >> kBits));
  }
  static Int mix(Int x) {
    x = (x ^ logical_shift<16>(x)) * Int(0x7feb352d);
    x = (x ^ logical_shift<15>(x)) * Int(static_cast<int32_t>(0x846ca68bu));
    return x ^ logical_shift<16>(x);
  }

  const KernelArguments& args;
  float factor_;
  uint32_t seed_;
};

}  // namespace antiphase
