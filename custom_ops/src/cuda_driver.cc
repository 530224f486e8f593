// Opens libcuda and asks it what GPUs are there. Nothing here makes a context.
#include "cuda_driver.h"

#include <dlfcn.h>

#include "check.h"

namespace tilewright::cuda {

const Driver& Driver::Get() {
  static const Driver& driver = *new Driver;  // never destroyed: sessions may end after static destructors have run
  return driver;
}

Driver::Driver() {
  problem = Open();
}

std::string Driver::Open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "no NVIDIA driver (libcuda.so.1 was not found)";
#define TILEWRIGHT_LOAD(member, symbol, ...)                                   \
  member = reinterpret_cast<decltype(member)>(dlsym(library, symbol));         \
  if (member == nullptr) return "the NVIDIA driver is too old: it has no " symbol;
  TILEWRIGHT_CUDA_API(TILEWRIGHT_LOAD)
#undef TILEWRIGHT_LOAD

  if (Result result = Init(0)) return Text("the NVIDIA driver does not start: ", ErrorText(result));
  DriverGetVersion(&version);
  if (version < kOldestDriver) {
    return Text("the NVIDIA driver supports CUDA ", version / 1000, ".", version % 1000 / 10, "; 13.0 (driver 580) is needed");
  }
  int count = 0;
  DeviceGetCount(&count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device device;
    char name[128] = "";
    Result result = DeviceGet(&device.handle, ordinal);
    if (result == 0) result = DeviceGetName(name, sizeof(name), device.handle);
    if (result == 0) result = DeviceGetAttribute(&device.major, kCapabilityMajor, device.handle);
    if (result == 0) result = DeviceGetAttribute(&device.minor, kCapabilityMinor, device.handle);
    if (result == 0) result = DeviceGetAttribute(&device.multiprocessors, kMultiprocessors, device.handle);
    if (result == 0) result = DeviceGetAttribute(&device.shared_per_block, kSharedPerBlockOptin, device.handle);
    if (result != 0) return Text("GPU ", ordinal, " cannot be queried: ", ErrorText(result));
    device.name = name;
    devices.push_back(device);
  }
  return devices.empty() ? "the NVIDIA driver shows no GPU" : "";
}

std::string Driver::ErrorText(Result result) const {
  const char* text = nullptr;
  if (GetErrorString(result, &text) != 0 || text == nullptr) return Text("CUDA error ", result);
  return Text(text, " (CUDA error ", result, ")");
}

void Driver::Check(Result result, const char* doing) const {
  if (result != 0) throw Error(Text(doing, ": ", ErrorText(result)));
}

PrimaryContext::PrimaryContext(const Driver& driver, DeviceHandle device) : driver_(driver) {
  Context* context = nullptr;
  // NOTE: never released: the functions that are loaded in it are kept for the life of the process.
  driver.Check(driver.DevicePrimaryCtxRetain(&context, device), "retaining the primary context");
  driver.Check(driver.CtxPushCurrent(context), "making the primary context current");
}

PrimaryContext::~PrimaryContext() {
  Context* context = nullptr;
  driver_.CtxPopCurrent(&context);
}

}  // namespace tilewright::cuda
