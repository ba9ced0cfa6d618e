// System threads for blocks that run side by side. They are kept: to start one, and the pages that it touches
// first, take longer than most blocks do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <latch>
#include <mutex>
#include <semaphore>
#include <thread>
#include <vector>

namespace device_on_host {

class Crew {
 public:
  // Runs job(0) to job(count - 1), all at once.
  void run(size_t count, const std::function<void(size_t)>& job) {
    std::vector<Worker*> workers = take(count);
    std::latch done(static_cast<std::ptrdiff_t>(count));
    for (size_t i = 0; i < count; ++i) {
      workers[i]->job = [&job, &done, i] {
        job(i);
        done.count_down();
      };
      workers[i]->start.release();
    }
    done.wait();
    const std::lock_guard<std::mutex> guard(mutex_);
    idle_.insert(idle_.end(), workers.begin(), workers.end());
  }

 private:
  struct Worker {
    std::function<void()> job;
    std::binary_semaphore start{0};
  };

  std::vector<Worker*> take(size_t count) {
    std::vector<Worker*> result;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      const size_t ready = std::min(count, idle_.size());
      result.assign(idle_.end() - static_cast<std::ptrdiff_t>(ready), idle_.end());
      idle_.resize(idle_.size() - ready);
    }
    while (result.size() < count) {
      auto* const worker = new Worker;  // as its thread, until the process ends
      std::thread([worker] {
        for (;;) {
          worker->start.acquire();
          worker->job();
        }
      }).detach();
      result.push_back(worker);
    }
    return result;
  }

  std::mutex mutex_;
  std::vector<Worker*> idle_;
};

}  // namespace device_on_host
