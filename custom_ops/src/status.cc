// The status of the process as JSON.
#include "status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "cuda_driver.h"
#include "image_cache.h"
#include "target_class.h"

namespace tilewright {
namespace {

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

template <class Range, class Item>
std::string Joined(const Range& range, Item&& item) {
  std::string out;
  for (const auto& value : range) out += (out.empty() ? "" : ", ") + item(value);
  return "[" + out + "]";
}

}  // namespace

Status& Status::Process() {
  static Status& status = *new Status;
  return status;
}

void Status::Runtime(const std::string& version) {
  std::lock_guard<std::mutex> lock(mutex_);
  runtime_ = version;
}

void Status::Registered(const std::vector<std::string>& classes) {
  std::lock_guard<std::mutex> lock(mutex_);
  registered_ = classes;
  reason_.clear();
}

void Status::NothingRegistered(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  reason_ = reason;
  const char* log = std::getenv("TILEWRIGHT_LOG");
  if (has_warned_ || (log != nullptr && std::strcmp(log, "off") == 0)) return;
  has_warned_ = true;
  std::fprintf(stderr, "tilewright: no kernels registered: %s; optimized models run their standard ops\n", reason.c_str());
}

std::string Status::ToJson() {
  const cuda::Driver& driver = cuda::Driver::Get();
  std::string devices = Joined(driver.devices, [](const cuda::Device& d) {
    return Text("{\"name\": ", Quoted(d.name), ", \"capability\": \"", d.major, ".", d.minor, "\", \"sms\": ", d.multiprocessors, "}");
  });
  std::lock_guard<std::mutex> lock(mutex_);
  return Text("{\"version\": \"" TILEWRIGHT_VERSION "\", \"registered\": ", Joined(registered_, Quoted), ", \"reason\": ", Quoted(reason_),
              ", \"runtime\": ", Quoted(runtime_), ", \"driver\": ", driver.version, ", \"driver_problem\": ", Quoted(driver.problem),
              ", \"devices\": ", devices, ", \"classes\": ", Joined(kTargetClasses, [](const TargetClass& c) { return Quoted(c.suffix); }),
              ", \"images\": ", ImageCache::Process().loaded(), ", \"nodes\": ", nodes.load(), ", \"launches\": ", launches.load(), "}");
}

}  // namespace tilewright
