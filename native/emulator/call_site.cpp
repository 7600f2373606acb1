#include "call_site.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stddef.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace maya {
namespace {

using Finder = void (*)(char* text, size_t bytes);
std::atomic<Finder> finder{nullptr};

const void* own_base() {
  Dl_info own;
  return dladdr(reinterpret_cast<const void*>(&own_base), &own) != 0 ? own.dli_fbase : nullptr;
}

}  // namespace

std::string call_site() {
  const Finder find = finder.load(std::memory_order_relaxed);
  if (find == nullptr) return {};
  std::array<char, 160> text{};
  find(text.data(), text.size() - 1);
  return text.data();
}

std::string at_call_site(const std::string& site) { return site.empty() ? "" : " at " + site; }

std::string calling_library() {
  std::array<void*, 32> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < count; ++i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0 || info.dli_fbase == own_base()) continue;
    const std::string path = info.dli_fname;
    return path.substr(path.rfind('/') + 1);
  }
  return {};
}

}  // namespace maya

extern "C" {

// For the start-up hook: `find` writes the call site of the calling thread as a string of up to `bytes`.
void maya_find_call_sites(void (*find)(char* text, size_t bytes)) { maya::finder = find; }

}  // extern "C"
