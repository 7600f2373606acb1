// NVTX ranges: PyTorch announces operators by them when asked to, and programs their phases.
//
// NVTX headers load the library named by NVTX_INJECTION64_PATH at their first call and hand it their
// tables of function pointers.
#include <nvtx3/nvToolsExt.h>
#include <wchar.h>

#include <string>

#include "recorder.h"

namespace maya {
namespace {

thread_local int range_depth = 0;

int push(std::string_view name) {
  Call call;
  call.record(Kind::range_push, {intern(name)});
  return range_depth++;
}

int pop() {
  if (range_depth == 0) return -1;
  Call call;
  call.record(Kind::range_pop, {});
  return --range_depth;
}

// Names in wide characters are ASCII in practice.
std::string narrow(const wchar_t* text) {
  std::string result;
  for (; text != nullptr && *text != L'\0'; ++text) result += *text < 0x80 ? static_cast<char>(*text) : '?';
  return result;
}

// Registered strings are kept for the life of the process.
struct RegisteredString {
  std::string text;
};

std::string message_of(const nvtxEventAttributes_t* attributes) {
  if (attributes == nullptr) return "";
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      return attributes->message.ascii != nullptr ? attributes->message.ascii : "";
    case NVTX_MESSAGE_TYPE_UNICODE:
      return narrow(attributes->message.unicode);
    case NVTX_MESSAGE_TYPE_REGISTERED:
      return reinterpret_cast<const RegisteredString*>(attributes->message.registered)->text;
    default:
      return "";
  }
}

int push_ascii(const char* message) { return push(message != nullptr ? message : ""); }
int push_wide(const wchar_t* message) { return push(narrow(message)); }
int push_attributes(const nvtxEventAttributes_t* attributes) { return push(message_of(attributes)); }
// Ranges of a library's own domain (CUB announces each of its algorithms) are not the program's.
int domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  return domain == nullptr ? push(message_of(attributes)) : 0;
}
int domain_pop(nvtxDomainHandle_t domain) { return domain == nullptr ? pop() : 0; }
nvtxDomainHandle_t create_domain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new RegisteredString{name != nullptr ? name : ""});
}
nvtxDomainHandle_t create_wide_domain(const wchar_t* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new RegisteredString{narrow(name)});
}
nvtxStringHandle_t register_string(nvtxDomainHandle_t /*domain*/, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(new RegisteredString{text != nullptr ? text : ""});
}
nvtxStringHandle_t register_wide_string(nvtxDomainHandle_t /*domain*/, const wchar_t* text) {
  return reinterpret_cast<nvtxStringHandle_t>(new RegisteredString{narrow(text)});
}

template <class Function>
void set(NvtxFunctionTable table, unsigned size, unsigned id, Function* function) {
  if (id < size && table[id] != nullptr) *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace
}  // namespace maya

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr) return 0;
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) != 0) {
    maya::set(table, size, NVTX_CBID_CORE_RangePushA, maya::push_ascii);
    maya::set(table, size, NVTX_CBID_CORE_RangePushW, maya::push_wide);
    maya::set(table, size, NVTX_CBID_CORE_RangePushEx, maya::push_attributes);
    maya::set(table, size, NVTX_CBID_CORE_RangePop, maya::pop);
  }
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) != 0) {
    maya::set(table, size, NVTX_CBID_CORE2_DomainRangePushEx, maya::domain_push);
    maya::set(table, size, NVTX_CBID_CORE2_DomainRangePop, maya::domain_pop);
    maya::set(table, size, NVTX_CBID_CORE2_DomainCreateA, maya::create_domain);
    maya::set(table, size, NVTX_CBID_CORE2_DomainCreateW, maya::create_wide_domain);
    maya::set(table, size, NVTX_CBID_CORE2_DomainRegisterStringA, maya::register_string);
    maya::set(table, size, NVTX_CBID_CORE2_DomainRegisterStringW, maya::register_wide_string);
  }
  return 1;
}
