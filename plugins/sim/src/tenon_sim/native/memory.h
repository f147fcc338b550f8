// Memory of the simulated devices: counted against a limit, full of garbage when new, between guard zones.
//
//     | 64 bytes of guard | data, 64-byte aligned | 64 bytes of guard |
//
// What an operation made on the host's side is adopted as it is: counted, but without guards.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace tenon_sim {

constexpr int kMaxDevices = 8;
constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

struct Pool {  // of one device; bytes
  int64_t limit = INT64_MAX, used = 0, peak = 0, damaged = 0;
  int garbage = 0;  // the byte that new memory is full of
};

Pool& pool(int device);
c10::Allocator* allocator();  // of the current device
c10::DataPtr adopt(c10::Storage storage, c10::Device device);
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
// Tagged memory can sleep: it counts as free and holds garbage until it wakes, as it was or zeroed.
void fill_pool(int tag);  // what this thread allocates belongs to it from now on; 0: to none
int64_t sleep_pool(int device, int tag, bool keeps);  // bytes
bool wake_pool(int device, int tag);  // false: there is no room for it
void lock_pools();
void unlock_pools();

}  // namespace tenon_sim
