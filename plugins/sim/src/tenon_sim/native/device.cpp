// The device as torch sees it: guard, generators, hooks, and the switches that Python reaches through ctypes.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <dlfcn.h>
#include <mutex>

#include "memory.h"

namespace tenon_sim {
namespace {

std::atomic<int> num_devices{1};
thread_local bool is_worker = false;  // this thread is a device's queue
std::mutex mutex;
std::condition_variable idle;
int64_t num_pending = 0;  // works queued and not done, of all devices

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device old = getDevice();
    set_current_device(device.index());
    return old;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device(device.index()); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return c10::Stream(c10::Stream::DEFAULT, stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return num_devices; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return num_devices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static at::Generator made[kMaxDevices];
    auto& one = made[device < 0 ? current_device() : device];
    if (!one.defined()) one = getNewGenerator(device);
    return one;
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SimGenerator>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    set_current_device(storage.device().index());
    c10::DataPtr grown = allocator()->allocate(bytes);
    allocator()->copy_data(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

SimGenerator::SimGenerator(c10::DeviceIndex device) {
  device_ = c10::Device(kType, device);
  key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
}

// The queue runs Python, so its lock must not be held while waiting; torch mostly lets go of it, not always.
void wait_for_queues() {
  if (is_worker) return;
  std::unique_lock<std::mutex> hold(mutex);
  if (num_pending == 0) return;
  static auto has_lock = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  static auto let_go = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
  static auto take_back = reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
  void* state = has_lock && has_lock() ? let_go() : nullptr;
  const bool done = idle.wait_for(hold, std::chrono::seconds(600), [] { return num_pending == 0; });
  hold.unlock();
  if (state) take_back(state);
  TORCH_CHECK(done, "the queue of the simulated device has not come to an end for 600 s");
}

}  // namespace tenon_sim

using namespace tenon_sim;

#pragma GCC visibility push(default)
extern "C" {

int tenon_sim_abi() { return 2; }

void tenon_sim_configure(int device, int64_t limit, int garbage) {
  lock_pools();
  pool(device).limit = limit;
  pool(device).garbage = garbage;
  unlock_pools();
  if (device >= num_devices) num_devices = device + 1;
}

int tenon_sim_num_devices() { return num_devices; }

// used, peak, damaged
void tenon_sim_memory(int device, int64_t* out) {
  lock_pools();
  const Pool& one = pool(device);
  out[0] = one.used;
  out[1] = one.peak;
  out[2] = one.damaged;
  unlock_pools();
}

void tenon_sim_reset_peak(int device) {
  lock_pools();
  pool(device).peak = pool(device).used;
  unlock_pools();
}

void tenon_sim_fill_pool(int tag) { fill_pool(tag); }

int64_t tenon_sim_sleep_pool(int device, int tag, int keeps) { return sleep_pool(device, tag, keeps); }

int tenon_sim_wake_pool(int device, int tag) { return wake_pool(device, tag); }

void tenon_sim_set_worker(int value) { is_worker = value; }

void tenon_sim_wait() { wait_for_queues(); }

void tenon_sim_pending(int change) {
  std::lock_guard<std::mutex> hold(mutex);
  num_pending += change;
  if (num_pending == 0) idle.notify_all();
}

}  // extern "C"
#pragma GCC visibility pop
