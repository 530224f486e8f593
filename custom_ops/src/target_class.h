// Target classes: families of images, and the GPUs that run them. tests/cpu/test_op_library.py holds the list against optimizer/targets.toml.
#pragma once

#include <string>
#include <vector>

namespace tilewright {

struct TargetClass {
  const char* suffix;  // in op and attribute names
  int arch;            // 90 is compute capability 9.0
  bool exact;          // runs on that architecture alone
  bool portable;       // carries code for every architecture from this one on

  bool RunsOn(int major, int minor) const {
    const int device = major * 10 + minor;
    return exact ? device == arch : device >= arch && (portable || device / 10 == arch / 10);
  }
};

// In the order of preference: the exact architecture, then the nearest plain one, then portable code.
constexpr TargetClass kTargetClasses[] = {
    {"sm120a", 120, true, false}, {"sm100a", 100, true, false},  {"sm90a", 90, true, false}, {"sm120", 120, false, false},
    {"sm100", 100, false, false}, {"sm90", 90, false, false},    {"sm89", 89, false, false}, {"sm86", 86, false, false},
    {"sm80", 80, false, false},   {"portable", 80, false, true},
};

}  // namespace tilewright
