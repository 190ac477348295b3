// Dynamic scheduling of work items on PyTorch's threads.

#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>

namespace antiphase {

// Run body(workspace, i) for i in [0, n) on all threads; a free thread takes the next item. Items
// write to separate memory, so the result does not depend on the schedule. Each thread has one
// workspace.
template <class Workspace, class Make, class Body>
void parallel_items(int64_t n, const Make& make_workspace, const Body& body) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(n, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Workspace workspace = make_workspace();
    for (int64_t i; (i = next.fetch_add(1)) < n;) body(workspace, i);
  });
}

}  // namespace antiphase
