// The lines of a text form: words separated by one space each.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace tilewright {

// Takes the first line off `rest` and puts its words, at least one, into `words`.
inline void TakeLine(std::string_view* rest, std::vector<std::string_view>* words) {
  std::string_view line = rest->substr(0, rest->find('\n'));
  rest->remove_prefix(std::min(rest->size(), line.size() + 1));
  words->clear();
  for (size_t begin = 0; begin <= line.size();) {
    size_t end = std::min(line.find(' ', begin), line.size());
    words->push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace tilewright
