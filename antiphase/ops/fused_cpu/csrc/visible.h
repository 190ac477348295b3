// Which keys a query row attends to: causality, window, documents and mask; and how a call is cut
// into blocks of query rows and spans of keys, so that what no row attends to costs nothing.

#pragma once

#include <vector>

#include "abi.h"

namespace antiphase {

// The keys of a row, apart from the mask: [first, last), and the keys [kept, kept_last) before
// them that stay visible beside a window.
struct RowKeys {
  int64_t first, last, kept, kept_last;
  bool any() const { return first < last || kept < kept_last; }
  int64_t lowest() const { return kept < kept_last ? kept : first; }
};

inline RowKeys keys_of_row(const KernelArguments& args, int64_t b, int64_t i) {
  const int64_t position = i + args.Tk - args.Tq;
  RowKeys keys{0, args.Tk, 0, 0};
  if (args.documents.data) {
    const auto* document = at_row<int32_t>(args.documents, b, 0, i);
    keys.first = document[0], keys.last = document[1];
  }
  if (args.causal) keys.last = std::clamp<int64_t>(position + 1, 0, keys.last);
  if (args.window) {
    const int64_t from = std::max(keys.first, position - args.window + 1);
    const int64_t kept_last = std::min(keys.first + args.keep_first, keys.last);
    if (kept_last < from) keys.kept = keys.first, keys.kept_last = kept_last, keys.first = from;
  }
  keys.first = std::min(keys.first, keys.last);
  return keys;
}

// Consecutive query rows of one head. The products run with the padded count.
struct RowBlock {
  int64_t first, count, padded;
  RowBlock(int64_t first, int64_t count)
      : first(first), count(count), padded(round_up(count, kRowAlign)) {}
};

// The blocks of each batch entry. Documents end a block, so that few rows share keys that are not
// theirs, unless the block would have fewer rows than a product needs anyway.
class Blocks {
 public:
  explicit Blocks(const KernelArguments& args) {
    const bool differ = args.documents.data && args.documents.batch != 0;
    lists_.resize(differ ? args.B : 1);
    for (size_t b = 0; b < lists_.size(); b++) {
      for (int64_t first = 0; first < args.Tq;) {
        const int64_t end = std::min(first + args.block_rows, args.Tq);
        int64_t last = end;
        if (args.documents.data)
          for (last = first + 1; last < end; last++)
            if (starts_document(args, b, last) && last - first >= kRowAlign) break;
        lists_[b].emplace_back(first, last - first);
        first = last;
      }
      most_ = std::max<int64_t>(most_, lists_[b].size());
    }
  }
  const std::vector<RowBlock>& of(int64_t b) const { return lists_[lists_.size() > 1 ? b : 0]; }
  int64_t most() const { return most_; }

 private:
  static bool starts_document(const KernelArguments& args, int64_t b, int64_t i) {
    return *at_row<int32_t>(args.documents, b, 0, i) !=
           *at_row<int32_t>(args.documents, b, 0, i - 1);
  }
  std::vector<std::vector<RowBlock>> lists_;
  int64_t most_ = 0;
};

// Columns of one tile of keys: those that some row of a block attends to, in steps of kKeyAlign.
struct Span {
  int64_t tile, from, width;
  bool masked;  // the mask hides or changes some of its scores
  int64_t key(int64_t tile_size) const { return tile * tile_size + from; }
};

// Reads the mask of a call.
class Mask {
 public:
  enum State { kEmpty, kFull, kMixed };

  explicit Mask(const KernelArguments& args) : args(args) {}

  bool given() const { return args.mask.data != nullptr; }
  bool boolean() const { return args.mask_dtype == 3; }
  // Whether all rows of a head have the same mask (padding).
  bool same_rows() const { return args.mask.row == 0; }

  // What the mask does to columns [key, key + n) of the rows of a block.
  State state(int64_t b, int64_t h, const RowBlock& rows, int64_t key, int64_t n) const {
    n = std::min(n, args.Tk - key);
    bool attend = false, hide = false;
    for (int64_t r = 0; r < (same_rows() ? 1 : rows.count); r++) {
      if (boolean()) {
        const auto* m = at_row<uint8_t>(args.mask, b, h, rows.first + r) + key;
        attend |= any_true(m, n), hide |= std::memchr(m, 0, n) != nullptr;
      } else {
        hide = true;  // a bias: every score may change
        attend |= any_finite(b, h, rows.first + r, key, n);
      }
      if (attend && hide) return kMixed;
    }
    return attend ? kFull : kEmpty;
  }

  // The bias of columns [key, key + n) of row i, in units of the scores before `scale`: 0 or -inf
  // for a boolean mask. Returns whether the row attends to any of them.
  bool bias(int64_t b, int64_t h, int64_t i, int64_t key, int64_t n, float scale, float* to) const {
    bool attend = false;
    if (boolean()) {
      const auto* m = at_row<uint8_t>(args.mask, b, h, i) + key;
      for (int64_t j = 0; j < n; j++) to[j] = m[j] ? 0.0f : -kInf;
      return any_true(m, n);
    }
    read(b, h, i, key, n, to);
    const float inverse = 1.0f / scale, most = std::numeric_limits<float>::max();
    for (int64_t j = 0; j < n; j++) {
      attend |= to[j] != -kInf;
      if (!std::isinf(to[j])) to[j] = std::clamp(to[j] * inverse, -most, most);
    }
    return attend;
  }

 private:
  static bool any_true(const uint8_t* m, int64_t n) {  // a true byte may have any value but 0
    uint8_t any = 0;
    for (int64_t j = 0; j < n; j++) any |= m[j];
    return any;
  }
  void read(int64_t b, int64_t h, int64_t i, int64_t key, int64_t n, float* to) const {
    if (args.mask_dtype == 0) convert_row(at_row<float>(args.mask, b, h, i) + key, to, n);
    if (args.mask_dtype == 1) convert_row(at_row<BFloat16>(args.mask, b, h, i) + key, to, n);
    if (args.mask_dtype == 2) convert_row(at_row<Half>(args.mask, b, h, i) + key, to, n);
  }
  bool any_finite(int64_t b, int64_t h, int64_t i, int64_t key, int64_t n) const {
    float part[kKeyAlign];
    for (int64_t j = 0; j < n; j += kKeyAlign) {
      const int64_t m = std::min(kKeyAlign, n - j);
      read(b, h, i, key + j, m, part);
      for (int64_t k = 0; k < m; k++)
        if (part[k] != -kInf) return true;
    }
    return false;
  }

  const KernelArguments& args;
};

// The spans of a block. First keys and ends do not decrease from row to row, so the first and the
// last row bound them.
inline void find_spans(const KernelArguments& args, const Mask& mask, int64_t tile, int64_t b,
                       int64_t h, const RowBlock& rows, std::vector<Span>& spans) {
  const RowKeys top = keys_of_row(args, b, rows.first),
                bottom = keys_of_row(args, b, rows.first + rows.count - 1);
  spans.clear();
  auto add = [&](int64_t first, int64_t last) {
    for (int64_t t = first / tile; t * tile < last && first < last; t++) {
      int64_t from = std::max(first - t * tile, int64_t{0}) / kKeyAlign * kKeyAlign;
      int64_t to = round_up(std::min(last - t * tile, tile), kKeyAlign);
      if (!spans.empty() && spans.back().tile == t) {  // kept keys in the window's first tile
        from = std::min(from, spans.back().from);
        to = std::max(to, spans.back().from + spans.back().width);
        spans.pop_back();
      }
      spans.push_back({t, from, to - from, false});
    }
  };
  // Documents that start inside the block have their first keys inside [top.first, bottom.last).
  add(top.kept, top.kept_last);
  add(top.first, bottom.last);
  if (!mask.given()) return;
  size_t n = 0;
  for (Span span : spans) {
    const Mask::State state = mask.state(b, h, rows, span.key(tile), span.width);
    span.masked = state == Mask::kMixed;
    if (state != Mask::kEmpty) spans[n++] = span;
  }
  spans.resize(n);
}

// The largest number of spans of a block, whatever the mask.
inline int64_t most_spans(const KernelArguments& args, const Blocks& blocks, int64_t tile) {
  KernelArguments unmasked = args;
  unmasked.mask.data = nullptr;
  const Mask mask(unmasked);
  std::vector<Span> spans;
  size_t most = 1;
  for (int64_t b = 0; b < (args.documents.data && args.documents.batch ? args.B : 1); b++)
    for (const RowBlock& rows : blocks.of(b)) {
      find_spans(unmasked, mask, tile, b, 0, rows, spans);
      most = std::max(most, spans.size());
    }
  return most;
}

}  // namespace antiphase
