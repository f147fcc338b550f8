// Memory that a call writes between its steps, kept from call to call. Grows, never shrinks; 64-aligned.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace tenon {

class Scratch {
public:
    // At least `bytes`; null where there is no memory. What it held is lost.
    uint8_t* get(int64_t bytes) {
        if (bytes <= size_) return memory_;
        std::free(memory_);
        size_ = 0;
        const int64_t whole = (bytes + 63) / 64 * 64;
        memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(whole)));
        if (memory_ != nullptr) size_ = whole;
        return memory_;
    }

private:
    uint8_t* memory_ = nullptr;
    int64_t size_ = 0;
};

// Lays arrays one after the other, each 64-aligned: first to add up the size, then over the memory.
class Arena {
public:
    explicit Arena(uint8_t* memory) : memory_(memory) {}

    template <class T>
    T* take(int64_t count) {
        const int64_t at = used_;
        used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
        return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
    }
    int64_t used() const { return used_; }

private:
    uint8_t* memory_;
    int64_t used_ = 0;
};

}  // namespace tenon
