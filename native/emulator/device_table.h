// Identity of the emulated devices, the same through the runtime, the driver and NVML.
#pragma once

#include <string>

namespace maya {

inline constexpr int kMaxDevices = 15;  // one PCI bus number 0x10..0xf0 each

int num_installed_devices();      // of the node, whatever CUDA_VISIBLE_DEVICES says; NVML shows these
int physical_device(int device);  // number in the node of a visible device
void device_uuid(int installed_device, unsigned char bytes[16]);
std::string device_uuid_text(int installed_device);  // GPU-xxxxxxxx-xxxx-...
int pci_bus(int installed_device);

// Answer of cudaDeviceGetAttribute and cuDeviceGetAttribute, whose numbers are the same; false for a
// number that is no attribute.
bool device_attribute(int attribute, int device, int* value);

// Marks that the device has a context, whose memory is then taken.
void use_context(int device);
bool has_context(int device);

void forget_devices();

}  // namespace maya
