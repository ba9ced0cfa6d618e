// What is known of each device of the process, found out once.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <memory>

namespace aten_ext {

// After the first question about a device, get() is one atomic load. Values live as long as the process.
template <class Value>
class DeviceCache {
 public:
  // make(device) -> Value; if it throws, nothing is kept. Two threads may both make it; one value is kept.
  template <class Make>
  const Value& get(c10::Device device, const Make& make) {
    const auto index = static_cast<size_t>(device.index() < 0 ? 0 : device.index());
    std::atomic<const Value*>& place = places_[index % kDevices];
    if (const Value* known = place.load(std::memory_order_acquire)) {
      return *known;
    }
    auto made = std::make_unique<const Value>(make(device));
    const Value* expected = nullptr;
    if (place.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) {
      return *made.release();
    }
    return *expected;
  }

 private:
  static constexpr size_t kDevices = 256;  // c10::DeviceIndex has 8 bits
  std::array<std::atomic<const Value*>, kDevices> places_{};
};

}  // namespace aten_ext
