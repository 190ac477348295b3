// Sharing items of work among PyTorch's threads.

#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace antiphase {

// Run body(worker, i) for i in [0, n) on all threads; each takes the next item when it is free.
// Items write to places of their own, so the result does not depend on who took what.
template <class Worker, class Make, class Body>
void share(int64_t n, const Make& make, const Body& body) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(n, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Worker worker = make();
    for (int64_t i; (i = next.fetch_add(1)) < n;) body(worker, i);
  });
}

}  // namespace antiphase
