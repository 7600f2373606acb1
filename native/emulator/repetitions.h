// How often the newest period of a sequence has repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maya {

// Keeps hashes of the newest device operations.
class Repetitions {
 public:
  void push(uint64_t hash);
  // The number of whole repetitions of the period that covers most of the sequence's tail; 0 below
  // two, and 0 while the repeating tail is shorter than the rest: layers of one pass repeat as well,
  // iterations come to make up most of the run.
  int64_t count() const;

 private:
  std::vector<uint64_t> hashes_;
};

}  // namespace maya
