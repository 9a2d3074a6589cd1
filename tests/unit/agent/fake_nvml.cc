// A driver's management library with two GPUs, loaded by the tests of executor/agent/nvml.h.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Memory {
  unsigned long long total;  // NOLINT: the types of the interface
  unsigned long long free;   // NOLINT
  unsigned long long used;   // NOLINT
};

struct Utilization {
  unsigned gpu, memory;
};

struct EventData {
  void* device;
  unsigned long long type, data;  // NOLINT
  unsigned gpu_instance, compute_instance;
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

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-0") != 0 && std::strcmp(uuid, "GPU-1") != 0) return 6;
  return nvmlDeviceGetHandleByIndex_v2(uuid[4] == '1' ? 1 : 0, device);
}

int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "Fake GPU %d", *static_cast<int*>(device));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = (*static_cast<int*>(device) + 1ull) << 30;
  memory->used = 1ull << 20;
  memory->free = memory->total - memory->used;
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* busy) {
  *busy = {.gpu = *static_cast<int*>(device) == 0 ? 0u : 75u, .memory = 1};
  return 0;
}

// The first has no sensor.
int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* celsius) {
  if (*static_cast<int*>(device) == 0 || sensor != 0) return 3;
  *celsius = 61;
  return 0;
}

int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 412500;
  return 0;
}

// The second reports an error, once, and then the codes that the file $FAKE_XID comes to hold.
int nvmlEventSetCreate(void** events) {
  static int set;
  *events = &set;
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* events) {  // NOLINT
  if (types != 8 || *static_cast<int*>(device) == 0) return 3;
  *static_cast<int*>(events) = 79;
  return 0;
}
int nvmlEventSetWait_v2(void* events, EventData* event, unsigned milliseconds) {
  int& xid = *static_cast<int*>(events);
  const char* const file = std::getenv("FAKE_XID");
  for (unsigned waited = 0; xid == 0 && waited < milliseconds; ++waited) {
    std::FILE* const codes = file == nullptr ? nullptr : std::fopen(file, "r");
    if (codes != nullptr) {
      if (std::fscanf(codes, "%d", &xid) != 1) xid = 0;
      std::fclose(codes);
    }
    if (xid != 0) unlink(file);
    if (xid == 0) usleep(1000);
  }
  if (xid == 0) return 10;
  void* second = nullptr;
  nvmlDeviceGetHandleByIndex_v2(1, &second);
  *event = {.device = second, .type = 8, .data = static_cast<unsigned>(xid)};
  xid = 0;
  return 0;
}

}  // extern "C"
