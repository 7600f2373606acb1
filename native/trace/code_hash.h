// Names device code across processes and runs.
#pragma once

#include <elf.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

#include "hash.h"

namespace maya {

// Of a cubin (an ELF file) its instructions count: the debug sections name the source's path and line, which
// differ between ranks that compile one and the same kernel. Of anything else all bytes count.
inline uint64_t code_hash(const void* data, size_t bytes) {
  const auto* base = static_cast<const unsigned char*>(data);
  Elf64_Ehdr header;
  if (bytes < sizeof header || memcmp(base, ELFMAG, SELFMAG) != 0) return fnv1a(data, bytes);
  memcpy(&header, base, sizeof header);
  uint64_t hash = fnv1a(nullptr, 0);
  bool has_code = false;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    size_t at = header.e_shoff + i * sizeof(Elf64_Shdr);
    Elf64_Shdr section;
    if (at > bytes || bytes - at < sizeof section) return fnv1a(data, bytes);
    memcpy(&section, base + at, sizeof section);
    if (!(section.sh_flags & SHF_EXECINSTR) || section.sh_size == 0) continue;
    if (section.sh_offset > bytes || bytes - section.sh_offset < section.sh_size) return fnv1a(data, bytes);
    hash = fnv1a(base + section.sh_offset, section.sh_size, hash);
    has_code = true;
  }
  return has_code ? hash : fnv1a(data, bytes);
}

}  // namespace maya
