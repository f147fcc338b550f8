#include "memory.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace tenon_sim {
namespace {

constexpr size_t kGuard = 64;
constexpr int kGuardByte = 0x5A;

Pool pools[kMaxDevices];
std::mutex mutex;
thread_local c10::DeviceIndex current = 0;
thread_local int filling = 0;

struct Block {
  int device;
  int64_t bytes;
  char* base;           // of guard, data, guard; null: adopted
  c10::Storage adopted;
  char* data;
  int tag;
  bool is_asleep = false;
  std::vector<char> kept = {};
};

std::unordered_set<Block*> tagged;  // that sleep can take

void take_locked(int device, int64_t bytes) {
  Pool& one = pools[device];
  TORCH_CHECK_WITH(
      OutOfMemoryError, one.used + bytes <= one.limit, "can't allocate memory: ", bytes, " bytes asked for, ", one.used,
      " of ", one.limit, " are in use on simulated device ", device);
  one.used += bytes;
  if (one.used > one.peak) one.peak = one.used;
}

void take(int device, int64_t bytes) {
  std::lock_guard<std::mutex> hold(mutex);
  take_locked(device, bytes);
}

Block* noted(Block* block) {
  if (block->tag) {
    std::lock_guard<std::mutex> hold(mutex);
    tagged.insert(block);
  }
  return block;
}

bool is_whole(const char* guard) {
  for (size_t i = 0; i < kGuard; ++i)
    if (guard[i] != kGuardByte) return false;
  return true;
}

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  bool damaged = block->base && !(is_whole(block->base) && is_whole(block->base + kGuard + block->bytes));
  {
    std::lock_guard<std::mutex> hold(mutex);
    if (!block->is_asleep) pools[block->device].used -= block->bytes;
    if (block->tag) tagged.erase(block);
    pools[block->device].damaged += damaged;
  }
  std::free(block->base);
  delete block;
}

struct SimAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current;
    take(device, bytes);
    const size_t whole = (bytes + 2 * kGuard + kGuard - 1) / kGuard * kGuard;
    auto* base = static_cast<char*>(std::aligned_alloc(kGuard, whole));
    TORCH_CHECK_WITH(OutOfMemoryError, base, "can't allocate memory: the host has no ", whole, " bytes");
    std::memset(base, kGuardByte, kGuard);
    std::memset(base + kGuard, pools[device].garbage, bytes);
    std::memset(base + kGuard + bytes, kGuardByte, kGuard);
    auto* block = noted(new Block{device, static_cast<int64_t>(bytes), base, {}, base + kGuard, filling});
    return {base + kGuard, block, &give_back, c10::Device(kType, device)};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
};

SimAllocator the_allocator;

}  // namespace

REGISTER_ALLOCATOR(kType, &the_allocator)

Pool& pool(int device) { return pools[device]; }
c10::Allocator* allocator() { return &the_allocator; }
c10::DeviceIndex current_device() { return current; }
void set_current_device(c10::DeviceIndex device) { current = device; }
void lock_pools() { mutex.lock(); }
void unlock_pools() { mutex.unlock(); }

c10::DataPtr adopt(c10::Storage storage, c10::Device device) {
  const int64_t bytes = storage.nbytes();
  void* data = storage.mutable_data();
  take(device.index(), bytes);
  auto* block = noted(new Block{
      static_cast<int>(device.index()), bytes, nullptr, std::move(storage), static_cast<char*>(data), filling});
  return {data, block, &give_back, device};
}

void fill_pool(int tag) { filling = tag; }

int64_t sleep_pool(int device, int tag, bool keeps) {
  std::lock_guard<std::mutex> hold(mutex);
  int64_t found = 0;
  for (Block* block : tagged) {
    if (block->device != device || block->tag != tag || block->is_asleep) continue;
    if (keeps) block->kept.assign(block->data, block->data + block->bytes);
    std::memset(block->data, pools[device].garbage, block->bytes);
    block->is_asleep = true;
    pools[device].used -= block->bytes;
    found += block->bytes;
  }
  return found;
}

bool wake_pool(int device, int tag) {
  std::lock_guard<std::mutex> hold(mutex);
  int64_t wanted = 0;
  for (Block* block : tagged)
    if (block->device == device && block->tag == tag && block->is_asleep) wanted += block->bytes;
  if (pools[device].used + wanted > pools[device].limit) return false;
  for (Block* block : tagged) {
    if (block->device != device || block->tag != tag || !block->is_asleep) continue;
    take_locked(device, block->bytes);
    if (block->kept.empty())
      std::memset(block->data, 0, block->bytes);
    else
      std::memcpy(block->data, block->kept.data(), block->bytes);
    block->kept = {};
    block->is_asleep = false;
  }
  return true;
}

}  // namespace tenon_sim
