// Kernels of a cubin (an ELF file of device code): attributes and parameter sizes.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace maya {

struct CubinKernel {
  int num_registers = 0;
  int static_shared_bytes = 0;
  std::vector<int> parameter_bytes;  // in order
};

// Empty when `image` is no 64-bit ELF file (PTX, a fat binary).
std::map<std::string, CubinKernel> read_cubin(const void* image);

// Length of the file: where the last of its parts ends; 0 when it is no 64-bit ELF file.
size_t cubin_bytes(const void* image);

}  // namespace maya
