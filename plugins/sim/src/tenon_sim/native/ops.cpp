// Operations of the simulated device: each runs the host's kernel on the same memory.
//
// A tensor argument is handed on as a host tensor over the device tensor's bytes. What comes back is, in this order,
// one of the arguments (in place, out=), a view of one (same storage), or new memory, which the device adopts. An
// argument whose memory was exchanged (resized) takes the new one over. Host tensors among the arguments are refused,
// but for those of one number, which is what torch makes of a Python number.
#include <ATen/core/Tensor.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

#include "device.h"
#include "memory.h"

namespace tenon_sim {
namespace {

using at::Tensor;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1), kHostKeys(c10::DispatchKey::CPU);

void same_shape(const Tensor& from, const Tensor& to) {
  to.unsafeGetTensorImpl()->set_storage_offset(from.storage_offset());
  to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides());
}

Tensor over(c10::Storage storage, c10::DispatchKeySet keys, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  same_shape(like, made);
  return made;
}

// As normal or as much an inference tensor as its base is, whatever the mode is now.
Tensor view_of(const Tensor& base, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), like.dtype());
  same_shape(like, made);
  return made;
}

c10::Storage host_storage(const c10::Storage& storage) {
  c10::DataPtr data(storage.mutable_data(), c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetAllocator(c10::kCPU), true);
}

struct Pair {
  Tensor device, host;
  void* data;  // of the host tensor's storage when it was made
};

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {}

  void to_host(c10::IValue& value) {
    if (value.isTensor()) {
      value = host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& one : value.toTensorVector()) made.push_back(host(one));
      value = made;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> made;
      for (std::optional<Tensor> one : value.toOptionalTensorList())
        made.push_back(one && one->defined() ? std::optional<Tensor>(host(*one)) : one);
      value = made;
    } else if (value.isDevice()) {
      if (value.toDevice().type() != kType) return;
      device_ = value.toDevice();
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator()) {
      given_ = value.toGenerator();
      if (given_.device().type() != kType) return;
      lent_ = at::make_generator<at::CPUGeneratorImpl>();
      lend(given_, lent_);
      value = lent_;
    }
  }

  void to_device(c10::IValue& value) {
    if (value.isTensor()) {
      value = device(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& one : value.toTensorVector()) made.push_back(device(one));
      value = made;
    }
  }

  void finish() {
    if (lent_.defined()) lend(lent_, given_);
    for (const Pair& one : pairs_) {
      if (one.host.storage().data() != one.data) {
        c10::StorageImpl* storage = one.device.storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(adopt(one.host.storage(), one.device.device()));
        storage->set_nbytes(one.host.storage().nbytes());
      }
      if (one.host.sizes() != one.device.sizes() || one.host.strides() != one.device.strides())
        same_shape(one.host, one.device);
    }
  }

 private:
  Tensor host(const Tensor& given) {
    if (!given.defined()) return given;
    if (given.device().type() != kType) {
      TORCH_CHECK(
          given.dim() == 0 && given.device().is_cpu(), op_.schema().operator_name(),
          ": expected all tensors on one device, found one on ", given.device(), " ", given.sizes(), " beside sim");
      return given;
    }
    TORCH_CHECK(
        !device_ || *device_ == given.device(), op_.schema().operator_name(), ": expected all tensors on one device, ",
        "found ", given.device(), " and ", *device_);
    device_ = given.device();
    for (const Pair& one : pairs_)
      if (one.device.is_same(given)) return one.host;
    c10::Storage storage;
    for (const Pair& one : pairs_)
      if (one.device.storage().is_alias_of(given.storage())) storage = one.host.storage();
    if (!storage) storage = host_storage(given.storage());
    void* data = storage.mutable_data();
    pairs_.push_back({given, over(std::move(storage), kHostKeys, given), data});
    return pairs_.back().host;
  }

  Tensor device(const Tensor& made) {
    if (!made.defined() || made.device().type() == kType) return made;
    for (const Pair& one : pairs_)
      if (one.host.is_same(made)) return one.device;
    for (const Pair& one : pairs_)
      if (one.host.storage().is_alias_of(made.storage())) return view_of(one.device, made);
    const c10::Device where = device_.value_or(c10::Device(kType, current_device()));
    const size_t bytes = made.storage().nbytes();
    return over(
        c10::Storage(c10::Storage::use_byte_size_t(), bytes, adopt(made.storage(), where), allocator(), true), kKeys,
        made);
  }

  static void lend(const at::Generator& from, const at::Generator& to) {
    auto *source = static_cast<at::CPUGeneratorImpl*>(from.unsafeGetGeneratorImpl()),
         *target = static_cast<at::CPUGeneratorImpl*>(to.unsafeGetGeneratorImpl());
    target->set_engine(source->engine());
    target->set_next_float_normal_sample(source->next_float_normal_sample());
    target->set_next_double_normal_sample(source->next_double_normal_sample());
  }

  const c10::OperatorHandle& op_;
  std::vector<Pair> pairs_;
  std::optional<c10::Device> device_;
  at::Generator given_, lent_;
};

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& one : schema.returns())
    if (one.alias_info() && !one.alias_info()->isWrite()) return true;
  return false;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (!is_view(schema)) wait_for_queues();
  Call call(op);
  for (auto it = stack->end() - schema.arguments().size(); it != stack->end(); ++it) call.to_host(*it);
  op.redispatchBoxed(kHostKeys, stack);
  call.finish();
  for (auto it = stack->end() - schema.returns().size(); it != stack->end(); ++it) call.to_device(*it);
}

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device())));
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device())));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
}

Tensor as_host(const Tensor& one) {
  return one.device().type() == kType ? over(host_storage(one.storage()), kHostKeys, one) : one;
}

// The one operation between devices, and between them and the host.
Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  wait_for_queues();
  as_host(target).copy_(as_host(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

Tensor as_strided(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(self.storage_offset()));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return made;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

}  // namespace tenon_sim
