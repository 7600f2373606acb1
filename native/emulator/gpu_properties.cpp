// What the emulated devices are: MAYA_GPU, MAYA_NUM_DEVICES and CUDA_VISIBLE_DEVICES.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "device_table.h"
#include "recorder.h"

namespace maya {
namespace {

struct Devices {
  GpuProperties properties;
  int num_installed = 0;
  std::vector<int> visible;  // physical numbers, in the order in which the program sees them
  bool is_valid = false;
};

using Pairs = std::map<std::string, std::string>;

Pairs parse_pairs(const std::string& text) {
  Pairs pairs;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = std::min(text.find(';', begin), text.size());
    size_t equals = text.find('=', begin);
    if (equals != std::string::npos && equals < end) {
      pairs[text.substr(begin, equals - begin)] = text.substr(equals + 1, end - equals - 1);
    }
    begin = end + 1;
  }
  return pairs;
}

// Numbers of the pairs; remembers the first that is missing or no number.
class PairReader {
 public:
  explicit PairReader(const Pairs& pairs) : pairs_(pairs) {}

  double number(const char* key) {
    auto found = pairs_.find(key);
    if (found == pairs_.end()) return fail(key);
    char* end = nullptr;
    double value = strtod(found->second.c_str(), &end);
    return end == found->second.c_str() || *end != '\0' || !isfinite(value) ? fail(key) : value;
  }
  int64_t integer(const char* key) { return llround(number(key)); }
  int small(const char* key) { return static_cast<int>(integer(key)); }
  int khz(const char* key) { return static_cast<int>(llround(number(key) / 1e3)); }
  std::string text(const char* key) {
    auto found = pairs_.find(key);
    if (found != pairs_.end()) return found->second;
    fail(key);
    return "";
  }
  const std::string& bad_key() const { return bad_key_; }

 private:
  double fail(const char* key) {
    if (bad_key_.empty()) bad_key_ = key;
    return 0;
  }

  const Pairs& pairs_;
  std::string bad_key_;
};

// Ordinals and UUIDs as the driver reads CUDA_VISIBLE_DEVICES: the list ends at the first entry that
// names no device, and a device named twice makes all of them invisible.
// Source: CUDA Programming Guide, environment variables.
std::vector<int> visible_devices(int num_installed) {
  std::vector<int> devices;
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int i = 0; i < num_installed; ++i) devices.push_back(i);
    return devices;
  }
  std::string text = list;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string entry = text.substr(begin, end - begin);
    entry.erase(0, std::min(entry.find_first_not_of(" \t"), entry.size()));
    int device = -1;
    if (entry.starts_with("GPU-")) {
      for (int i = 0; i < num_installed; ++i) {
        if (device_uuid_text(i).starts_with(entry)) device = i;
      }
    } else {
      char* rest = nullptr;
      long number = strtol(entry.c_str(), &rest, 10);
      if (rest != entry.c_str()) device = static_cast<int>(number);
    }
    if (device < 0 || device >= num_installed) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) return {};
    devices.push_back(device);
    begin = end + 1;
  }
  return devices;
}

Devices read_devices() {
  Devices devices;
  const char* text = getenv("MAYA_GPU");
  if (text == nullptr || *text == '\0') return devices;
  Pairs pairs = parse_pairs(text);
  PairReader reader(pairs);
  GpuProperties& p = devices.properties;
  p.name = reader.text("device_name");
  std::string capability = reader.text("compute_capability");
  if (sscanf(capability.c_str(), "%d.%d", &p.compute_major, &p.compute_minor) != 2) {
    warn("MAYA_GPU: compute_capability is '%s', not as 9.0; no device is emulated", capability.c_str());
    return devices;
  }
  p.num_sms = reader.small("num_sms");
  p.memory_bytes = reader.integer("memory_bytes");
  p.l2_bytes = reader.integer("l2_bytes");
  p.shared_bytes_per_block = reader.integer("shared_bytes_per_block");
  p.shared_bytes_per_block_optin = reader.integer("shared_bytes_per_block_optin");
  p.shared_bytes_per_sm = reader.integer("shared_bytes_per_sm");
  p.max_threads_per_sm = reader.small("max_threads_per_sm");
  p.max_blocks_per_sm = reader.small("max_blocks_per_sm");
  p.sm_clock_khz = reader.khz("sm_clock_hz");
  p.memory_clock_khz = reader.khz("memory_clock_hz");
  p.memory_bus_bits = reader.small("memory_bus_bits");
  p.async_engines = reader.small("async_engines");
  p.context_bytes = reader.integer("context_bytes");
  p.nccl_channels = reader.small("nccl_channels");
  p.nccl_channels_per_peer = reader.small("nccl_channels_per_peer");
  p.nccl_nvls_channels = reader.small("nccl_nvls_channels");
  if (!reader.bad_key().empty()) {
    warn("MAYA_GPU: %s is missing or not a number; no device is emulated", reader.bad_key().c_str());
    return devices;
  }
  const char* count = getenv("MAYA_NUM_DEVICES");
  if (count == nullptr) count = getenv("LOCAL_WORLD_SIZE");
  devices.num_installed = count != nullptr ? std::clamp(atoi(count), 0, kMaxDevices) : 1;
  devices.visible = visible_devices(devices.num_installed);
  devices.is_valid = true;
  return devices;
}

std::mutex devices_mutex;
std::atomic<const Devices*> devices_read{nullptr};

const Devices& devices() {
  const Devices* known = devices_read.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  std::lock_guard lock(devices_mutex);
  if (devices_read.load() == nullptr)
    devices_read.store(new Devices(read_devices()), std::memory_order_release);
  return *devices_read.load();
}

thread_local int current __attribute__((tls_model("initial-exec")));

}  // namespace

const GpuProperties& gpu() { return devices().properties; }
int num_devices() { return static_cast<int>(devices().visible.size()); }
int num_installed_devices() { return devices().num_installed; }
int physical_device(int device) { return devices().visible[static_cast<size_t>(device)]; }

int current_device() { return current; }
void set_current_device(int device) { current = device; }

// A rank that is forked from a prepared process gets its own environment; the old value is leaked, as
// it may be referred to.
void forget_devices() { devices_read.store(nullptr); }

void device_uuid(int installed_device, unsigned char bytes[16]) {
  memset(bytes, 0, 16);
  memcpy(bytes, "maya-gpu", 8);
  bytes[15] = static_cast<unsigned char>(installed_device);
}

std::string device_uuid_text(int installed_device) {
  unsigned char b[16];
  device_uuid(installed_device, b);
  char text[48];
  snprintf(text, sizeof(text), "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
           b[15]);
  return text;
}

// As on machines with one GPU below each root port: buses 0x10, 0x20, ...
int pci_bus(int installed_device) { return 0x10 * (installed_device + 1); }

}  // namespace maya
