#pragma once

#include <ATen/CPUGeneratorImpl.h>

namespace tenon_sim {

struct SimGenerator final : at::CPUGeneratorImpl {
  explicit SimGenerator(c10::DeviceIndex device);
};

// An operation that the host launches runs after all work in the queues, as in a stream.
void wait_for_queues();

}  // namespace tenon_sim
