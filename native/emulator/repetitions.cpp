#include "repetitions.h"

#include <algorithm>

namespace maya {
namespace {

constexpr size_t kMaxOperations = 2 << 20;

}  // namespace

void Repetitions::push(uint64_t hash, bool is_matrix_work) {
  if (hashes_.size() == kMaxOperations) hashes_.erase(hashes_.begin(), hashes_.begin() + kMaxOperations / 2);
  hashes_.push_back((hash & ~1ULL) | (is_matrix_work ? 1 : 0));
}

// The Knuth-Morris-Pratt failure function of the reversed sequence: a prefix of length i with the
// longest border b has the least period i - b, so the tail of length i consists of i / (i - b)
// periods. The longest tail with two or more periods wins.
int64_t Repetitions::count() const {
  size_t length = hashes_.size();
  auto reversed = [&](size_t i) { return hashes_[length - 1 - i]; };
  std::vector<uint32_t> border(length + 1, 0);
  size_t matched = 0, tail = 0, newest_period = 0;
  int64_t repetitions = 0;
  for (size_t i = 1; i < length; ++i) {
    while (matched > 0 && reversed(i) != reversed(matched)) matched = border[matched];
    if (reversed(i) == reversed(matched)) ++matched;
    border[i + 1] = static_cast<uint32_t>(matched);
    size_t period = i + 1 - matched;
    if (matched > 0 && (i + 1) / period >= 2) {
      tail = i + 1;
      newest_period = period;
      repetitions = static_cast<int64_t>(tail / period);
    }
  }
  auto newest = hashes_.end() - static_cast<ptrdiff_t>(newest_period);
  bool has_matrix_work = std::any_of(newest, hashes_.end(), [](uint64_t hash) { return (hash & 1) != 0; });
  return has_matrix_work && 2 * tail >= length ? repetitions : 0;
}

}  // namespace maya
