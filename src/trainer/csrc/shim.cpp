// A C interface to libtorch's TCPStore, ProcessGroupGloo, gradient slots and copies to GPUs, for
// src/trainer/distributed/ffi.rs.
//
// Rules: no exception crosses this interface (`guarded` turns each into a status and a text); every function
// that waits takes a time limit; handles are owned by the caller and freed once. Statuses are those of
// `Status` in ffi.rs.

#define USE_C10D_GLOO 1

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

// The store writes its peers' addresses into messages and asks the name server what they are called, which
// costs ten seconds of start-up where no server answers for them. An executable's symbols come before libc's,
// so numbers are all that it gets.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t length, char* host, socklen_t host_length,
                                                                  char* service, socklen_t service_length, int flags) {
  static const auto real = reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  if (real == nullptr) return EAI_FAIL;
  return real(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST);
}

namespace {

using std::chrono::milliseconds;

enum Status : int32_t { kOk = 0, kFailed = 1, kTimeout = 2, kNetwork = 3, kAddressInUse = 4 };

struct ErrorText {
  char bytes[1024];
};

struct StoreHandle {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// c10d gives its timeouts and lost peers no types that are visible here, so the text decides.
Status classify(const std::string& text) {
  if (contains(text, "EADDRINUSE") || contains(text, "ddress already in use")) return kAddressInUse;
  if (contains(text, "imed out") || contains(text, "imeout")) return kTimeout;
  if (contains(text, "Connection") || contains(text, "onnect") || contains(text, "roken pipe") ||
      contains(text, "ocket") || contains(text, "recvValue"))
    return kNetwork;
  return kFailed;
}

Status report(ErrorText* error, const std::string& text) {
  const size_t length = std::min(text.size(), sizeof(error->bytes) - 1);
  std::memcpy(error->bytes, text.data(), length);
  error->bytes[length] = '\0';
  return classify(text);
}

template <typename Body>
int32_t guarded(ErrorText* error, Body body) noexcept {
  try {
    body();
    return kOk;
  } catch (const c10::Error& e) {
    return report(error, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return report(error, e.what());
  } catch (...) {
    return report(error, "an exception of unknown type");
  }
}

at::Tensor& tensor(void* pointer) {
  return *static_cast<at::Tensor*>(pointer);
}

// at::cuda::CUDAGraph. It lies in libtorch_cuda.so, which is opened at run time and is not there on hosts
// without a GPU, and its header needs CUDA's; so its functions are resolved by name, and an object is memory
// that is larger than any release of it has been.
using MemoryPool = std::pair<unsigned long long, unsigned long long>;

struct GraphFunctions {
  void (*construct)(void*, bool);
  void (*destroy)(void*);
  void (*begin)(void*, MemoryPool, int);
  void (*end)(void*);
  void (*replay)(void*);
  MemoryPool (*pool)();
};

template <typename Function>
void resolve(Function& function, const char* symbol) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, symbol));
  if (function == nullptr) throw std::runtime_error(std::string("this libtorch has no CUDA graphs: no symbol ") + symbol);
}

const GraphFunctions& graph_functions() {
  static const GraphFunctions functions = [] {
    GraphFunctions found{};
    resolve(found.construct, "_ZN2at4cuda9CUDAGraphC1Eb");
    resolve(found.destroy, "_ZN2at4cuda9CUDAGraphD1Ev");
    resolve(found.begin, "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
    resolve(found.end, "_ZN2at4cuda9CUDAGraph11capture_endEv");
    resolve(found.replay, "_ZN2at4cuda9CUDAGraph6replayEv");
    resolve(found.pool, "_ZN2at4cuda17graph_pool_handleEv");
    return found;
  }();
  return functions;
}

struct GraphHandle {
  alignas(16) unsigned char object[1024];
  // The stream that was current before the capture began.
  c10::Stream before;
};

// A capture that failed leaves libtorch's allocator without the events by which memory that several streams
// use comes back; so one stream does all.
std::atomic<bool> one_stream{false};

} // namespace

extern "C" {

// A client of a TCPStore, such as the one that torchrun's agent serves.
int32_t rankdeck_store_open(const char* host, uint16_t port, int64_t timeout_ms, StoreHandle** out, ErrorText* error) {
  return guarded(error, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = false;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
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

// Makes the memory of `gradient` the `.grad` of `parameter`: autograd then accumulates into it in place.
// `variable_data` shares the memory without being a view to autograd: optimisers detach gradients in place,
// which views refuse.
int32_t rankdeck_set_grad(void* parameter, void* gradient, ErrorText* error) {
  return guarded(error, [&] { tensor(parameter).mutable_grad() = tensor(gradient).variable_data(); });
}

// Leaves `parameter` without a gradient, so that the next backward pass that uses it makes a new one.
int32_t rankdeck_clear_grad(void* parameter, ErrorText* error) {
  return guarded(error, [&] { tensor(parameter).mutable_grad() = at::Tensor(); });
}

// Continues a backward pass from `from`, whose gradient is known.
int32_t rankdeck_backward(void* from, void* gradient, ErrorText* error) {
  return guarded(error, [&] { tensor(from).backward(tensor(gradient)); });
}

// Copies `host` to the GPU `index` by way of pinned memory and on a stream of its own, and makes `out` the
// copy. The host does not wait; what libtorch does with the copy later waits on the GPU. CUDA is
// reached through c10's registry, so that nothing of it is linked.
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
    const c10::Stream compute = cuda->getStream(device);
    const c10::Stream copies = one_stream ? compute : found->second;
    // libtorch keeps pinned memory until the copies from it are done, and uses it again.
    const at::Tensor pinned = tensor(host).pin_memory();
    at::Tensor there;
    {
      const c10::StreamGuard guard(copies);
      there = pinned.to(pinned.options().device(device).pinned_memory(false), /*non_blocking=*/true);
    }
    if (copies != compute) {
      c10::Event done(c10::DeviceType::CUDA);
      done.record(copies);
      done.block(compute);
      // The memory is the copy stream's: it must not be given away while the other stream still reads it.
      cuda->recordDataPtrOnStream(there.storage().data_ptr(), compute);
    }
    tensor(out) = there;
  });
}

// What libtorch launches on this thread from here on, and backward passes of it, becomes a CUDA graph, and is
// not executed.
int32_t rankdeck_graph_begin(int32_t index, GraphHandle** out, ErrorText* error) {
  GraphHandle* handle = nullptr;
  const auto* cuda = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  const int32_t status = guarded(error, [&] {
    const GraphFunctions& graph = graph_functions();
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
    // All graphs are captured on one stream and replayed in turn, so they share their memory.
    static const c10::Stream captures = cuda->getStreamFromGlobalPool(device, /*isHighPriority=*/false);
    static const MemoryPool pool = graph.pool();
    cuda->synchronizeDevice(device.index());
    handle = new GraphHandle{{}, cuda->exchangeStream(captures)};
    graph.construct(handle->object, false);
    // Thread-local: what other threads do meanwhile (polling events of collectives) is not part of it and
    // does not harm it.
    constexpr int kThreadLocal = 1;
    graph.begin(handle->object, pool, kThreadLocal);
  });
  if (status != kOk && handle != nullptr) {
    ErrorText ignored;
    guarded(&ignored, [&] { cuda->exchangeStream(handle->before); });
    guarded(&ignored, [&] { graph_functions().destroy(handle->object); });
    delete handle;
    one_stream = true;
    return status;
  }
  *out = handle;
  return status;
}

// Ends the capture. After an error the graph cannot be replayed; it is freed as usual.
int32_t rankdeck_graph_end(GraphHandle* handle, ErrorText* error) {
  const int32_t status = guarded(error, [&] { graph_functions().end(handle->object); });
  if (status != kOk) one_stream = true;
  ErrorText other;
  const int32_t restored = guarded(&other, [&] { c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->exchangeStream(handle->before); });
  if (status == kOk && restored != kOk) *error = other;
  return status != kOk ? status : restored;
}

int32_t rankdeck_graph_replay(GraphHandle* handle, ErrorText* error) {
  return guarded(error, [&] { graph_functions().replay(handle->object); });
}

void rankdeck_graph_free(GraphHandle* handle) {
  ErrorText ignored;
  guarded(&ignored, [&] { graph_functions().destroy(handle->object); });
  delete handle;
}

// One step of Adam for each of `count` tensors, by libtorch's fused kernel: one launch for all. `steps` are
// the counts, this step included, as f32 scalars on the tensors' device. `rate`, a scalar there, counts
// instead of `learning_rate` where it is given.
int32_t rankdeck_fused_adam(
    void* const* parameters,
    void* const* gradients,
    void* const* first,
    void* const* second,
    void* const* steps,
    size_t count,
    void* rate,
    double learning_rate,
    double beta1,
    double beta2,
    double eps,
    ErrorText* error) {
  return guarded(error, [&] {
    const auto list = [&](void* const* pointers) {
      std::vector<at::Tensor> tensors;
      for (size_t i = 0; i < count; i++) tensors.push_back(tensor(pointers[i]));
      return tensors;
    };
    const at::NoGradGuard guard;
    if (rate != nullptr) {
      at::_fused_adam_(list(parameters), list(gradients), list(first), list(second), {}, list(steps), tensor(rate), beta1, beta2,
                       /*weight_decay=*/0.0, eps, /*amsgrad=*/false, /*maximize=*/false);
      return;
    }
    at::_fused_adam_(list(parameters), list(gradients), list(first), list(second), {}, list(steps), learning_rate, beta1, beta2,
                     /*weight_decay=*/0.0, eps, /*amsgrad=*/false, /*maximize=*/false);
  });
}

// Whether cuDNN may only use algorithms that give the same bits each time, and whether it times its
// algorithms where a shape is new. Returns what held before, as bits 0 and 1.
int32_t rankdeck_cudnn(int32_t deterministic, int32_t benchmark) {
  auto& context = at::globalContext();
  const int32_t before = (context.deterministicCuDNN() ? 1 : 0) | (context.benchmarkCuDNN() ? 2 : 0);
  context.setDeterministicCuDNN(deterministic != 0);
  context.setBenchmarkCuDNN(benchmark != 0);
  return before;
}

const char* rankdeck_torch_version() {
  return TORCH_VERSION;
}


// An exception that leaves a destructor ends the process; its text is reported before that.
void rankdeck_on_terminate(void (*reported)(const char*)) {
  static void (*reporter)(const char*);
  reporter = reported;
  static const std::terminate_handler usual = std::get_terminate();
  std::set_terminate([] {
    if (const auto current = std::current_exception()) {
      try {
        std::rethrow_exception(current);
      } catch (const c10::Error& e) {
        reporter(e.what_without_backtrace());
      } catch (const std::exception& e) {
        reporter(e.what());
      } catch (...) {
      }
    }
    usual();
  });
}

} // extern "C"
