// What the library did in this process, for people: counters and the reason why nothing was registered.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tilewright {

class Status {
 public:
  static Status& Process();

  void Runtime(const std::string& version);
  void Registered(const std::vector<std::string>& classes);

  // Remembers why a session got no kernels and says so on standard error, once a process (TILEWRIGHT_LOG=off: never).
  void NothingRegistered(const std::string& reason);

  // JSON, as custom_ops.status() returns it.
  std::string ToJson();

  std::atomic<uint64_t> nodes{0};     // custom nodes created
  std::atomic<uint64_t> launches{0};  // kernels launched or captured

 private:
  std::mutex mutex_;
  std::string runtime_;                  // ONNX Runtime's version
  std::vector<std::string> registered_;  // target classes, as spelled in op names
  std::string reason_;                   // why there are none
  bool has_warned_ = false;
};

}  // namespace tilewright
