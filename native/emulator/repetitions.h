// How often the newest period of a sequence has repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maya {

// Keeps hashes of the newest device operations.
class Repetitions {
 public:
  // `is_matrix_work`: a matrix product, a convolution or attention.
  void push(uint64_t hash, bool is_matrix_work);
  // The number of whole repetitions of the period that covers most of the sequence's tail; 0 below
  // two, and 0 while the repeating tail is shorter than the rest: layers of one pass repeat as well,
  // iterations come to make up most of the run. 0 also where a period has no matrix work: copies of
  // random number states, barriers and the initialisation of layers repeat before a program trains.
  int64_t count() const;

 private:
  std::vector<uint64_t> hashes_;  // the lowest bit says whether it is matrix work
};

}  // namespace maya
