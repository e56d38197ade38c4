// Stands in for a gloo header that libtorch's wheel does not ship. Only ever a pointer here: never build one.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
