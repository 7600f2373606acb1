#include "cubin.h"

#include <elf.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace maya {
namespace {

// Attributes of .nv.info sections, as listed by `cuobjdump -elf`: a format byte, an attribute byte,
// and two bytes of value or of payload size.
constexpr uint8_t kFormatSized = 4;
constexpr uint8_t kKernelParameter = 0x17;  // EIATTR_KPARAM_INFO
constexpr uint8_t kRegisterCount = 0x2f;    // EIATTR_REGCOUNT

struct Attribute {
  uint8_t code;
  const char* payload;
  size_t bytes;
};

template <class Visitor>
void visit_attributes(const char* data, size_t bytes, Visitor visit) {
  size_t at = 0;
  while (at + 4 <= bytes) {
    uint8_t format = static_cast<uint8_t>(data[at]), code = static_cast<uint8_t>(data[at + 1]);
    uint16_t size;
    memcpy(&size, data + at + 2, sizeof(size));
    at += 4;
    if (format != kFormatSized) continue;  // the value was in the two bytes
    if (at + size > bytes) return;
    visit(Attribute{code, data + at, size});
    at += size;
  }
}

void read_parameters(const char* data, size_t bytes, CubinKernel* kernel) {
  visit_attributes(data, bytes, [&](const Attribute& attribute) {
    if (attribute.code != kKernelParameter || attribute.bytes != 12) return;
    uint16_t ordinal;
    uint32_t flags;
    memcpy(&ordinal, attribute.payload + 4, sizeof(ordinal));
    memcpy(&flags, attribute.payload + 8, sizeof(flags));
    if (kernel->parameter_bytes.size() <= ordinal) kernel->parameter_bytes.resize(ordinal + 1u);
    kernel->parameter_bytes[ordinal] = static_cast<int>(flags >> 18);
  });
}

bool is_cubin(const char* base) { return memcmp(base, ELFMAG, SELFMAG) == 0 && base[EI_CLASS] == ELFCLASS64; }

}  // namespace

size_t cubin_bytes(const void* image) {
  auto* base = static_cast<const char*>(image);
  if (!is_cubin(base)) return 0;
  auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
  auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header->e_shoff);
  size_t end = std::max(header->e_shoff + header->e_shnum * sizeof(Elf64_Shdr),
                        header->e_phoff + header->e_phnum * sizeof(Elf64_Phdr));
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_NOBITS) end = std::max(end, sections[i].sh_offset + sections[i].sh_size);
  }
  return end;
}

std::map<std::string, CubinKernel> read_cubin(const void* image) {
  std::map<std::string, CubinKernel> kernels;
  auto* base = static_cast<const char*>(image);
  if (!is_cubin(base)) return kernels;
  auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
  auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header->e_shoff);
  const char* names = base + sections[header->e_shstrndx].sh_offset;
  const Elf64_Shdr* global_info = nullptr;
  const Elf64_Shdr* symbols = nullptr;
  for (int i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr& section = sections[i];
    std::string_view name = names + section.sh_name;
    const char* data = base + section.sh_offset;
    if (section.sh_type == SHT_SYMTAB) symbols = &section;
    if (name == ".nv.info") {
      global_info = &section;
    } else if (name.starts_with(".nv.info.")) {
      read_parameters(data, section.sh_size, &kernels[std::string(name.substr(9))]);
    } else if (name.starts_with(".nv.shared.")) {
      kernels[std::string(name.substr(11))].static_shared_bytes = static_cast<int>(section.sh_size);
    }
  }
  if (global_info == nullptr || symbols == nullptr) return kernels;
  auto* table = reinterpret_cast<const Elf64_Sym*>(base + symbols->sh_offset);
  const char* texts = base + sections[symbols->sh_link].sh_offset;
  visit_attributes(base + global_info->sh_offset, global_info->sh_size, [&](const Attribute& attribute) {
    if (attribute.code != kRegisterCount || attribute.bytes != 8) return;
    uint32_t symbol, count;
    memcpy(&symbol, attribute.payload, sizeof(symbol));
    memcpy(&count, attribute.payload + 4, sizeof(count));
    auto found = kernels.find(texts + table[symbol].st_name);
    if (found != kernels.end()) found->second.num_registers = static_cast<int>(count);
  });
  return kernels;
}

}  // namespace maya
