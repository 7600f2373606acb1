// Times single calls into the emulator; compiled and run by emulator_overhead.py.
#include <cuda_runtime_api.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" void** __cudaRegisterFatBinary(void*);
extern "C" void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                                       dim3*, int*);

namespace {

constexpr int kNumCalls = 200'000;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

struct Timing {
  double median_ns, p99_ns;
};

// The cost of reading the clock is taken out by timing nothing.
template <class Function>
Timing time_calls(Function function) {
  std::vector<int64_t> times(kNumCalls);
  for (int64_t& time : times) {
    int64_t begin = now_ns();
    function();
    time = now_ns() - begin;
  }
  std::sort(times.begin(), times.end());
  return {static_cast<double>(times[kNumCalls / 2]), static_cast<double>(times[kNumCalls * 99 / 100])};
}

template <class Function>
void report(const char* name, Function function) {
  double clock_ns = time_calls([] {}).median_ns;
  Timing timing = time_calls(function);
  int64_t begin = now_ns();
  for (int i = 0; i < kNumCalls; ++i) function();
  double mean_ns = static_cast<double>(now_ns() - begin) / kNumCalls;
  printf("%s %.1f %.1f %.0f\n", name, timing.median_ns - clock_ns, timing.p99_ns - clock_ns, 1e9 / mean_ns);
}

char stub;

}  // namespace

int main() {
  // A kernel as PyTorch has thousands: an element count, a functor, an array of pointers.
  static char name[] =
      "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_";
  void** handle = __cudaRegisterFatBinary(nullptr);
  __cudaRegisterFunction(handle, &stub, name, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  cudaEvent_t event;
  cudaStream_t stream;
  if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return 1;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  int num_elements = 1 << 20;
  float functor = 0;
  void* pointers[1] = {};
  void* arguments[] = {&num_elements, &functor, pointers};
  report("cudaLaunchKernel",
         [&] { cudaLaunchKernel(&stub, {1024, 1, 1}, {128, 1, 1}, arguments, 0, stream); });
  report("cudaEventRecord", [&] { cudaEventRecord(event, stream); });
  report("cudaStreamWaitEvent", [&] { cudaStreamWaitEvent(nullptr, event, 0); });
  report("cudaEventQuery", [&] { cudaEventQuery(event); });
  report("cudaGetDevice", [&] {
    int device;
    cudaGetDevice(&device);
  });
  return 0;
}
