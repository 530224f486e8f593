// SHA-256 (FIPS 180-4), the name of an image.
#pragma once

#include <cstddef>
#include <string>

namespace tilewright {

// 64 lower-case hexadecimal digits.
std::string Sha256(const void* bytes, size_t size);

}  // namespace tilewright
