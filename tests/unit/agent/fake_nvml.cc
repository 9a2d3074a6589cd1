// A driver's management library with two GPUs, loaded by the tests of executor/agent/nvml.h.

#include <cstdio>
#include <cstring>

struct Memory {
  unsigned long long total;  // NOLINT: the types of the interface
  unsigned long long free;   // NOLINT
  unsigned long long used;   // NOLINT
};

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static const int kDevices[2] = {0, 1};
  *device = const_cast<int*>(&kDevices[index]);
  return 0;
}

int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "Fake GPU %d", *static_cast<int*>(device));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = (*static_cast<int*>(device) + 1ull) << 30;
  memory->free = memory->total;
  memory->used = 0;
  return 0;
}

}  // extern "C"
