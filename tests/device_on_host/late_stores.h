// The asynchronous stores between the blocks of a cluster that have not arrived yet.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "runtime.h"

namespace device_on_host {

// Of one cluster; its blocks, which run on a system thread each, share it.
class LateStores {
 public:
  // A store to the block of that rank, which `arrive` makes: at once, or when its barrier is waited for.
  void add(unsigned rank, const void* barrier, std::function<void()> arrive, bool late) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (ended_.count(rank) != 0) {
        fail("an asynchronous store to a block that has ended");
      }
      if (late) {
        stores_.push_back({rank, barrier, std::move(arrive)});
        return;
      }
    }
    arrive();
  }

  // Makes the stores that count on `barrier`; whether there were any.
  bool arrive(const void* barrier) {
    std::vector<Store> arriving;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      const auto first = std::stable_partition(stores_.begin(), stores_.end(),
                                               [&](const Store& s) { return s.barrier != barrier; });
      std::move(first, stores_.end(), std::back_inserter(arriving));
      stores_.erase(first, stores_.end());
    }
    for (const Store& store : arriving) {
      store.arrive();
    }
    return !arriving.empty();
  }

  // No store to this block may come from now on, or be on its way.
  void end_block(unsigned rank) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (std::any_of(stores_.begin(), stores_.end(), [&](const Store& s) { return s.rank == rank; })) {
      fail("a block ends that has not waited for an asynchronous store to it");
    }
    ended_.insert(rank);
  }

 private:
  struct Store {
    unsigned rank;
    const void* barrier;
    std::function<void()> arrive;
  };

  std::mutex mutex_;
  std::vector<Store> stores_;
  std::set<unsigned> ended_;  // blocks
};

}  // namespace device_on_host
