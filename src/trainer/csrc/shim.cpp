// A C interface to libtorch's TCPStore, ProcessGroupGloo, gradient slots and copies to GPUs, for src/trainer/distributed/ffi.rs.
//
// Rules: no exception crosses this interface (`guarded` turns each into a status and a text); every function that waits takes a time limit;
// handles are owned by the caller and freed once. Statuses are those of `Status` in ffi.rs.

#define USE_C10D_GLOO 1

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

// The store writes its peers' addresses into messages and asks the name server what they are called, which costs ten seconds of start-up where no
// server answers for them. An executable's symbols come before libc's, so numbers are all that it gets.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t length, char* host, socklen_t host_length,
                                                                  char* service, socklen_t service_length, int flags) {
  static const auto real = reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  if (real == nullptr) return EAI_FAIL;
  return real(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST);
}

namespace {

using std::chrono::milliseconds;

enum Status : int32_t { kOk = 0, kFailed = 1, kTimeout = 2, kNetwork = 3, kAddressInUse = 4, kMismatch = 5 };

// A failed check inside gloo's own thread: another rank sent something of another size.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ErrorText {
  char bytes[1024];
};

struct StoreHandle {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct GlooHandle {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Neither c10d nor gloo gives its timeouts and lost peers types that are visible here, so the text has to tell.
Status classify(const std::string& text) {
  if (contains(text, "EADDRINUSE") || contains(text, "ddress already in use")) return kAddressInUse;
  if (contains(text, "imed out") || contains(text, "imeout")) return kTimeout;
  if (contains(text, "Connection") || contains(text, "onnect") || contains(text, "roken pipe") ||
      contains(text, "ocket") || contains(text, "recvValue") || contains(text, "Read error") ||
      contains(text, "Write error"))
    return kNetwork;
  return kFailed;
}

Status report(ErrorText* error, const std::string& text) {
  const size_t length = std::min(text.size(), sizeof(error->bytes) - 1);
  std::memcpy(error->bytes, text.data(), length);
  error->bytes[length] = '\0';
  return classify(text);
}

std::mutex gloo_mutex;
std::string gloo_last_words; // guarded by gloo_mutex; empty while all is well
std::terminate_handler previous_handler = nullptr;

// Gloo throws on a thread of its own when a peer's message has another size than expected, where nobody can catch it: that would end the
// process with no word about which collective it was. Such a thread is parked here and its words are kept for whoever waits. Every other
// cause of std::terminate ends the process as before.
void park_gloo_thread() {
  try {
    if (const auto exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    if (contains(typeid(e).name(), "4gloo")) {
      {
        const std::lock_guard<std::mutex> lock(gloo_mutex);
        gloo_last_words = e.what();
      }
      for (;;) pause();
    }
  } catch (...) {
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

void watch_gloo_threads() {
  static std::once_flag once;
  std::call_once(once, [] { previous_handler = std::set_terminate(park_gloo_thread); });
}

void throw_if_gloo_died() {
  const std::lock_guard<std::mutex> lock(gloo_mutex);
  if (!gloo_last_words.empty()) throw Mismatch("another rank sent another amount of data: " + gloo_last_words);
}

template <typename Body>
int32_t guarded(ErrorText* error, Body body) noexcept {
  try {
    body();
    return kOk;
  } catch (const Mismatch& e) {
    report(error, e.what());
    return kMismatch;
  } catch (const c10::Error& e) {
    return report(error, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return report(error, e.what());
  } catch (...) {
    return report(error, "an exception of unknown type");
  }
}

// Waits for the work; `limit` is a second line behind the group's own timeout, which is counted per message and not per operation.
// In slices, to look after gloo's threads; the first is longer than nearly every operation, since each that ends early costs an exception.
void finish(const c10::intrusive_ptr<c10d::Work>& work, int64_t limit_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + milliseconds(std::max<int64_t>(limit_ms, 1));
  milliseconds slice(1000);
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      work->wait(std::max(std::min(slice, left), milliseconds(1)));
      return;
    } catch (const c10::Error&) {
      throw_if_gloo_died();
      // It may have ended since the slice was over: then it says itself how. Making the exception alone takes long enough for that.
      if (work->isCompleted()) {
        work->wait();
        return;
      }
      if (Clock::now() >= deadline) throw;
    }
    slice = std::min(slice * 2, milliseconds(8000));
  }
}

at::Tensor& tensor(void* pointer) {
  return *static_cast<at::Tensor*>(pointer);
}

} // namespace

extern "C" {

// TCPStore. `listen_fd` is a bound socket for the server to take over, or -1.
int32_t rankdeck_store_open(
    const char* host,
    uint16_t port,
    bool server,
    int32_t listen_fd,
    int64_t timeout_ms,
    StoreHandle** out,
    ErrorText* error) {
  return guarded(error, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = server;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    if (server && listen_fd >= 0) options.masterListenFd = listen_fd;
    *out = new StoreHandle{c10::make_intrusive<c10d::TCPStore>(std::string(host), options)};
  });
}

void rankdeck_store_free(StoreHandle* handle) {
  ErrorText ignored;
  guarded(&ignored, [&] { delete handle; });
}

int32_t rankdeck_store_set(StoreHandle* handle, const char* key, const uint8_t* value, size_t length, ErrorText* error) {
  return guarded(error, [&] { handle->store->set(key, std::vector<uint8_t>(value, value + length)); });
}

// Waits for the key; `length` is the value's whole length, of which at most `capacity` bytes are copied.
int32_t rankdeck_store_get(
    StoreHandle* handle,
    const char* key,
    int64_t timeout_ms,
    uint8_t* value,
    size_t capacity,
    size_t* length,
    ErrorText* error) {
  return guarded(error, [&] {
    handle->store->wait({key}, milliseconds(timeout_ms));
    const std::vector<uint8_t> bytes = handle->store->get(key);
    std::memcpy(value, bytes.data(), std::min(capacity, bytes.size()));
    *length = bytes.size();
  });
}

int32_t rankdeck_store_add(StoreHandle* handle, const char* key, int64_t delta, int64_t* sum, ErrorText* error) {
  return guarded(error, [&] { *sum = handle->store->add(key, delta); });
}

int32_t rankdeck_store_check(StoreHandle* handle, const char* key, bool* present, ErrorText* error) {
  return guarded(error, [&] { *present = handle->store->check({key}); });
}

// ProcessGroupGloo. Exactly one of `interface` and `address` is given; both null lets libtorch resolve this machine's name.
int32_t rankdeck_gloo_open(
    StoreHandle* store,
    const char* prefix,
    int32_t rank,
    int32_t world_size,
    const char* interface,
    const char* address,
    int64_t timeout_ms,
    GlooHandle** out,
    ErrorText* error) {
  return guarded(error, [&] {
    using c10d::ProcessGroupGloo;
    watch_gloo_threads();
    auto options = ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    if (interface != nullptr) {
      options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
    } else if (address != nullptr) {
      options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(address));
    } else {
      options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
    }
    auto named = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store);
    *out = new GlooHandle{c10::make_intrusive<ProcessGroupGloo>(named, rank, world_size, options)};
  });
}

void rankdeck_gloo_free(GlooHandle* handle) {
  ErrorText ignored;
  guarded(&ignored, [&] { delete handle; });
}

// `op`: 0 sum, 1 min, 2 max.
int32_t rankdeck_gloo_all_reduce(GlooHandle* handle, void* data, int32_t op, int64_t limit_ms, ErrorText* error) {
  return guarded(error, [&] {
    c10d::AllreduceOptions options;
    options.reduceOp = op == 1 ? c10d::ReduceOp::MIN : op == 2 ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    std::vector<at::Tensor> tensors{tensor(data)};
    finish(handle->group->allreduce(tensors, options), limit_ms);
  });
}

int32_t rankdeck_gloo_broadcast(GlooHandle* handle, void* data, int32_t root, int64_t limit_ms, ErrorText* error) {
  return guarded(error, [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor(data)};
    finish(handle->group->broadcast(tensors, options), limit_ms);
  });
}

// `outputs`: one tensor per rank, each of the shape of `input`.
int32_t rankdeck_gloo_all_gather(
    GlooHandle* handle,
    void* const* outputs,
    size_t count,
    void* input,
    int64_t limit_ms,
    ErrorText* error) {
  return guarded(error, [&] {
    std::vector<std::vector<at::Tensor>> lists(1);
    for (size_t i = 0; i < count; ++i) lists[0].push_back(tensor(outputs[i]));
    std::vector<at::Tensor> inputs{tensor(input)};
    finish(handle->group->allgather(lists, inputs), limit_ms);
  });
}

int32_t rankdeck_gloo_barrier(GlooHandle* handle, int64_t limit_ms, ErrorText* error) {
  return guarded(error, [&] { finish(handle->group->barrier(), limit_ms); });
}

// Makes the memory of `gradient` the `.grad` of `parameter`: autograd then accumulates into it in place. `variable_data` shares the memory
// without being a view to autograd: optimisers detach gradients in place, which views refuse.
int32_t rankdeck_set_grad(void* parameter, void* gradient, ErrorText* error) {
  return guarded(error, [&] { tensor(parameter).mutable_grad() = tensor(gradient).variable_data(); });
}

// Leaves `parameter` without a gradient, so that the next backward pass that uses it makes a new one.
int32_t rankdeck_clear_grad(void* parameter, ErrorText* error) {
  return guarded(error, [&] { tensor(parameter).mutable_grad() = at::Tensor(); });
}

// Copies `host` to the GPU `index` by way of pinned memory and on a stream of its own, and makes `out` the copy. The host does not wait; what libtorch is
// told to do with the copy later waits on the GPU. CUDA is reached through c10's registry, so that nothing of it is linked.
int32_t rankdeck_upload(void* host, int32_t index, void* out, ErrorText* error) {
  return guarded(error, [&] {
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
    const auto* cuda = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
    // One per thread and device: the pool hands out its streams in turn.
    static thread_local std::vector<std::pair<int32_t, c10::Stream>> streams;
    auto found = std::find_if(streams.begin(), streams.end(), [&](const auto& known) { return known.first == index; });
    if (found == streams.end()) {
      streams.emplace_back(index, cuda->getStreamFromGlobalPool(device, /*isHighPriority=*/false));
      found = std::prev(streams.end());
    }
    const c10::Stream copies = found->second;
    const c10::Stream compute = cuda->getStream(device);
    // libtorch keeps pinned memory until the copies from it are done, and uses it again.
    const at::Tensor pinned = tensor(host).pin_memory();
    at::Tensor there;
    {
      const c10::StreamGuard guard(copies);
      there = pinned.to(pinned.options().device(device).pinned_memory(false), /*non_blocking=*/true);
    }
    c10::Event done(c10::DeviceType::CUDA);
    done.record(copies);
    done.block(compute);
    // The memory is the copy stream's: it must not be given away while the other stream still reads it.
    cuda->recordDataPtrOnStream(there.storage().data_ptr(), compute);
    tensor(out) = there;
  });
}

const char* rankdeck_torch_version() {
  return TORCH_VERSION;
}

} // extern "C"
