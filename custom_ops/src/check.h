// Errors: thrown as Error inside the library, turned into an OrtStatus that names the node at the C border. None of our exceptions crosses it.
#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include "ort_abi.h"

namespace tilewright {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The parts written one after the other.
template <class... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws what `status` says, if it says anything.
inline void Check(const ort::Api& api, ort::Status* status, const char* doing) {
  if (status == nullptr) return;
  std::string message = Text(doing, ": ", api.GetErrorMessage(status));
  api.ReleaseStatus(status);
  throw Error(message);
}

// Runs `body`; an exception becomes a status that begins with `where`.
template <class Body>
ort::Status* AtBorder(const ort::Api& api, const std::string& where, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return api.CreateStatus(ort::kErrorFail, (where + error.what()).c_str());
  }
}

}  // namespace tilewright
