// Dynamic scheduling of work items on PyTorch's threads.

#pragma once

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <numeric>

namespace antiphase {

// Run body(workspace, i) for i in [0, n) on all threads; a free thread takes the next item. Items
// write to separate memory, so the result does not depend on the schedule. Each thread has one
// workspace.
template <class Workspace, class Make, class Body>
void parallel_items(int64_t n, const Make& make_workspace, const Body& body) {
  std::atomic<int64_t> next{0};
  auto work = [&] {
    Workspace workspace = make_workspace();
    for (int64_t i; (i = next.fetch_add(1)) < n;) body(workspace, i);
  };
  const int64_t threads = std::min<int64_t>(n, at::get_num_threads());
  if (threads <= 1) return n > 0 ? work() : void();
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
  // What at::parallel_for does, without its private symbols, which differ between versions. The
  // region has all threads, because another number of them makes OpenMP start new ones.
#pragma omp parallel
  if (omp_get_thread_num() < threads) {
    try {
      work();
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace antiphase
