// Stands in for a gloo header that libtorch's wheel does not ship. Only ever pointers here: never build one.
#pragma once

#include <memory>

namespace gloo {
namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
} // namespace transport
} // namespace gloo
