// NVML: what programs ask of the emulated devices' management library.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "allocations.h"
#include "device_table.h"
#include "nvml_types.h"
#include "recorder.h"
#include "runtime.h"

struct nvmlDevice_st {
  int index;  // in the node
};

namespace maya {
namespace {

constexpr const char* kDriverVersion = "580.65.06";  // the first release branch of CUDA 13.0

nvmlDevice_t device_handle(int index) {
  static nvmlDevice_st handles[kMaxDevices];
  handles[index].index = index;
  return &handles[index];
}

// The number under which this process sees the device of the node; -1 when it is hidden from it.
int visible_number(int index) {
  for (int i = 0; i < num_devices(); ++i) {
    if (physical_device(i) == index) return i;
  }
  return -1;
}

unsigned long long used_bytes(int index) {
  int device = visible_number(index);
  if (device < 0 || !has_context(device)) return 0;
  return static_cast<unsigned long long>(gpu().context_bytes + device_bytes_used(device));
}

std::string bus_id(int index) {
  char text[32];
  snprintf(text, sizeof(text), "00000000:%02X:00.0", pci_bus(index));
  return text;
}

nvmlReturn_t copy_text(char* target, unsigned length, const std::string& text) {
  if (text.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(target, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

nvmlReturn_t initialise() {
  return num_installed_devices() > 0 ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

// This process alone is known; the program of another rank is on another device.
template <class ProcessInfo>
nvmlReturn_t running_processes(nvmlDevice_t device, unsigned* count, ProcessInfo* infos) {
  unsigned long long bytes = used_bytes(device->index);
  unsigned capacity = *count;
  *count = bytes > 0 ? 1 : 0;
  if (*count > capacity) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (*count > 0) {
    memset(infos, 0, sizeof(*infos));
    infos->pid = static_cast<unsigned>(getpid());
    infos->usedGpuMemory = bytes;
  }
  return NVML_SUCCESS;
}

}  // namespace
}  // namespace maya

extern "C" {

nvmlReturn_t nvmlInit() { return maya::initialise(); }
nvmlReturn_t nvmlInit_v2() { return maya::initialise(); }
nvmlReturn_t nvmlInitWithFlags(unsigned /*flags*/) { return maya::initialise(); }
const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned length) {
  MAYA_COUNT_CALL();
  return maya::copy_text(text, length, maya::kDriverVersion);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char* text, unsigned length) {
  MAYA_COUNT_CALL();
  return maya::copy_text(text, length, std::string("13.") + maya::kDriverVersion);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  MAYA_COUNT_CALL();
  *version = CUDA_VERSION;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  MAYA_COUNT_CALL();
  *count = static_cast<unsigned>(maya::num_installed_devices());
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  MAYA_COUNT_CALL();
  if (index >= static_cast<unsigned>(maya::num_installed_devices())) return NVML_ERROR_INVALID_ARGUMENT;
  *device = maya::device_handle(static_cast<int>(index));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  MAYA_COUNT_CALL();
  for (int i = 0; i < maya::num_installed_devices(); ++i) {
    if (maya::device_uuid_text(i) == uuid) {
      *device = maya::device_handle(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}
// Domains are written with four or with eight digits.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* text, nvmlDevice_t* device) {
  MAYA_COUNT_CALL();
  unsigned domain = 0, bus = 0, slot = 0;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < maya::num_installed_devices(); ++i) {
    if (domain == 0 && slot == 0 && static_cast<unsigned>(maya::pci_bus(i)) == bus) {
      *device = maya::device_handle(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* text, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  MAYA_COUNT_CALL();
  *index = static_cast<unsigned>(device->index);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* number) {
  return nvmlDeviceGetIndex(device, number);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t /*device*/, char* name, unsigned length) {
  MAYA_COUNT_CALL();
  return maya::copy_text(name, length, maya::gpu().name);
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  MAYA_COUNT_CALL();
  return maya::copy_text(uuid, length, maya::device_uuid_text(device->index));
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  MAYA_COUNT_CALL();
  memset(info, 0, sizeof(*info));
  info->bus = static_cast<unsigned>(maya::pci_bus(device->index));
  snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "0000:%02X:00.0", info->bus);
  snprintf(info->busId, sizeof(info->busId), "%s", maya::bus_id(device->index).c_str());
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return nvmlDeviceGetPciInfo_v3(device, info);
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t /*device*/, int* major, int* minor) {
  MAYA_COUNT_CALL();
  *major = maya::gpu().compute_major;
  *minor = maya::gpu().compute_minor;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  MAYA_COUNT_CALL();
  memory->total = static_cast<unsigned long long>(maya::gpu().memory_bytes);
  memory->used = maya::used_bytes(device->index);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  MAYA_COUNT_CALL();
  memory->total = static_cast<unsigned long long>(maya::gpu().memory_bytes);
  memory->reserved = 0;
  memory->used = maya::used_bytes(device->index);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
// A device that computes in no time is idle.
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t /*device*/, nvmlUtilization_t* utilization) {
  MAYA_COUNT_CALL();
  *utilization = {0, 0};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t /*device*/, unsigned type, unsigned* clock_mhz) {
  MAYA_COUNT_CALL();
  int khz = type == NVML_CLOCK_MEM ? maya::gpu().memory_clock_khz : maya::gpu().sm_clock_khz;
  *clock_mhz = static_cast<unsigned>(khz / 1000);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned* clock_mhz) {
  return nvmlDeviceGetClockInfo(device, type, clock_mhz);
}
// Physical quantities that are not emulated are refused as on parts without the sensor.
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t /*device*/, unsigned /*sensor*/, unsigned* /*celsius*/) {
  MAYA_COUNT_CALL();
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t /*device*/, unsigned* /*milliwatts*/) {
  MAYA_COUNT_CALL();
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t /*device*/,
                                                 unsigned long long* /*millijoules*/) {
  MAYA_COUNT_CALL();
  return NVML_ERROR_NOT_SUPPORTED;
}

// PyTorch asks by the name without a version and passes the first layout of the process information.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  MAYA_COUNT_CALL();
  return maya::running_processes(device, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  MAYA_COUNT_CALL();
  return maya::running_processes(device, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t /*device*/, nvmlDevice_t /*peer*/, unsigned /*index*/,
                                    unsigned* status) {
  MAYA_COUNT_CALL();
  *status = NVML_P2P_STATUS_OK;
  return NVML_SUCCESS;
}
// Links are asked to find out whether peers are reached through NVSwitch; how GPUs are connected is a
// matter of the simulated cluster, not of this process.
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t /*device*/, unsigned /*link*/, unsigned* /*is_active*/) {
  MAYA_COUNT_CALL();
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t /*device*/, unsigned /*link*/,
                                                 unsigned* /*type*/) {
  MAYA_COUNT_CALL();
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t /*device*/, unsigned /*link*/,
                                                 nvmlPciInfo_t* /*info*/) {
  MAYA_COUNT_CALL();
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t /*device*/, nvmlGpuFabricInfoV_t* info) {
  MAYA_COUNT_CALL();
  unsigned version = info->version;
  *info = {};
  info->version = version;
  info->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;  // no multi-node NVLink
  return NVML_SUCCESS;
}

}  // extern "C"
