// PyTorch's own caching host allocator, brought to life without a GPU.
//
// at::CachingHostAllocatorImpl is a template in the headers of every torch wheel: it decides the size of each block,
// keeps freed blocks and hands them out again. A backend gives it four things: how to get page-locked memory, how to
// give it back, and how to record and query an event on a stream. Here memory comes from the kernel in the shape the
// CUDA driver gives it, one shared anonymous mapping for each block; there are no streams, so no event is ever pending.
//
// The face is plain C, for ctypes. Every call returns 0, or -1 with a message in `error`.

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace {

struct NoEvent {};

// The kernel refused the mapping itself: no page was taken. Told apart from a failure to make pages resident.
struct NoAddressSpace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string failure(const char* what, size_t size, int code) {
  return std::string(what) + " of a block of " + std::to_string(size) + " bytes failed: " + std::strerror(code);
}

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t whole_pages(size_t size) {
  return (size + page_size() - 1) / page_size() * page_size();
}

// Makes every page resident where mlock is not allowed. Kernels before 5.14 do not know the advice; then each page is
// written. The advice is better where it exists, since it answers ENOMEM where a write would raise SIGBUS.
void touch(char* start, size_t size) {
  if (madvise(start, size, MADV_POPULATE_WRITE) == 0) {
    return;
  }
  if (errno != EINVAL) {
    throw std::runtime_error(failure("touching", size, errno));
  }
  for (size_t offset = 0; offset < size; offset += page_size()) {
    static_cast<volatile char*>(start)[offset] = 0;
  }
}

struct HostAllocator final : at::CachingHostAllocatorImpl<c10::Stream, NoEvent> {
  bool is_locked(void* pointer) {
    std::lock_guard<std::mutex> guard(locked_mutex_);
    return locked_.at(pointer);
  }

 private:
  // A block lies between two inaccessible pages, so that a write past its end is a fault and not a neighbour's damage.
  // It is not passed on to forked children: a child would keep a block resident that was freed here.
  void allocate_host_memory(size_t size, void** pointer) override {
    const size_t length = whole_pages(size);
    const size_t page = page_size();
    if (length < size || length + 2 * page < length) {
      throw NoAddressSpace(failure("mmap", size, ENOMEM));
    }
    char* base = static_cast<char*>(
        mmap(nullptr, length + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base == MAP_FAILED) {
      throw NoAddressSpace(failure("mmap", size, errno));
    }
    char* start = base + page;
    try {
      if (mmap(start, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        throw NoAddressSpace(failure("mmap", size, errno));
      }
      madvise(start, length, MADV_DONTFORK);
      const bool locked = mlock(start, length) == 0;
      if (!locked) {
        touch(start, length);
      }
      std::lock_guard<std::mutex> guard(locked_mutex_);
      locked_[start] = locked;
    } catch (...) {
      munmap(base, length + 2 * page);
      throw;
    }
    *pointer = start;
  }

  void free_block(at::HostBlock<c10::Stream>* block) override {
    {
      std::lock_guard<std::mutex> guard(locked_mutex_);
      locked_.erase(block->ptr_);
    }
    munmap(static_cast<char*>(block->ptr_) - page_size(), whole_pages(block->size_) + 2 * page_size());
  }

  void record_stream(std::optional<std::vector<NoEvent>>&, c10::Stream) override {}

  bool query_event(NoEvent&) override {
    return true;
  }

  std::mutex locked_mutex_;
  std::unordered_map<void*, bool> locked_;
};

// Leaked on purpose: with background threads on, a static object's destructor waits at exit for a thread that a forked
// child does not have.
HostAllocator& allocator() {
  static HostAllocator* const instance = new HostAllocator;
  return *instance;
}

// All blocks, in use or kept. Up to torch 2.9 that is called reserved_bytes, and allocated_bytes are those in use alone.
template <typename Stats>
auto bytes_of_all_blocks(const Stats& stats, int) -> decltype(int64_t{stats.reserved_bytes.current}) {
  return stats.reserved_bytes.current;
}

template <typename Stats>
int64_t bytes_of_all_blocks(const Stats& stats, long) {
  return stats.allocated_bytes.current;
}

const pid_t owner = getpid();

template <typename Work>
int guarded(char* error, size_t error_size, Work work) {
  try {
    if (getpid() != owner) {
      // The allocator's mutexes may have been held by a thread that does not exist here.
      throw std::runtime_error("the allocator can't be used in a forked child; start a fresh process");
    }
    work();
    return 0;
  } catch (const NoAddressSpace& refused) {
    std::snprintf(error, error_size, "%s", refused.what());
    return -2;
  } catch (const c10::Error& refused) {
    std::snprintf(error, error_size, "%s", refused.what_without_backtrace());
  } catch (const std::exception& refused) {
    std::snprintf(error, error_size, "%s", refused.what());
  }
  return -1;
}

}  // namespace

extern "C" {

int pinprobe_allocate(size_t size, void** pointer, void** context, int* locked, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    if (size == 0) {
      throw std::runtime_error("a request for 0 bytes has no block");
    }
    auto [start, block] = allocator().allocate(size);
    *pointer = start;
    *context = block;
    *locked = allocator().is_locked(start);
  });
}

int pinprobe_free(void* context, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { allocator().free(context); });
}

int pinprobe_empty_cache(char* error, size_t error_size) {
  return guarded(error, error_size, [&] { allocator().empty_cache(); });
}

// The allocator's own account: bytes of all its blocks, in use or kept. A second source beside the kernel's.
int pinprobe_allocated_bytes(int64_t* bytes, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { *bytes = bytes_of_all_blocks(allocator().getStats(), 0); });
}

// The settings this torch took from the environment, and the keys its common allocator knows, comma-separated.
int pinprobe_settings(char* settings, char* keys, size_t size, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    std::snprintf(settings, size, "%s", Config::instance().last_allocator_settings().c_str());
    std::string joined;
    for (const auto& key : Config::getKeys()) {
      joined += joined.empty() ? key : "," + key;
    }
    std::snprintf(keys, size, "%s", joined.c_str());
  });
}

}  // extern "C"
