// What recording costs: a histogram of the time spent inside of recorded calls. Those that moved a payload or
// waited for one are left out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace maya {

class OverheadHistogram {
 public:
  void add(int64_t duration_ns) {
    const auto bucket = static_cast<size_t>(std::max<int64_t>(duration_ns, 0) / kBucketNs);
    ++counts_[std::min(bucket, kNumBuckets)];
    ++num_calls_;
  }

  // Interpolated within its bucket; the upper end of the histogram where most calls took longer; 0 without
  // calls.
  double median_ns() const {
    const double half = static_cast<double>(num_calls_) / 2;
    double before = 0;
    for (size_t bucket = 0; bucket < kNumBuckets; ++bucket) {
      const auto count = static_cast<double>(counts_[bucket]);
      if (count > 0 && before + count >= half) {
        return kBucketNs * (static_cast<double>(bucket) + (half - before) / count);
      }
      before += count;
    }
    return num_calls_ > 0 ? double{kBucketNs} * kNumBuckets : 0;
  }

 private:
  static constexpr int64_t kBucketNs = 16;
  static constexpr size_t kNumBuckets = 256;
  std::array<uint64_t, kNumBuckets + 1> counts_{};  // the last: all that took longer
  uint64_t num_calls_ = 0;
};

}  // namespace maya
