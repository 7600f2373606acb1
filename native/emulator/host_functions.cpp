// Host functions of streams: run once, in call order, on a thread of their own.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "recorder.h"
#include "runtime.h"

namespace maya {
namespace {

struct Job {
  void (*function)(void*);
  void* data;
};

struct Worker {
  std::mutex mutex;
  std::condition_variable work_came, work_done;
  std::deque<Job> jobs;  // the front one is running
  std::atomic<int> num_pending = 0;
  bool is_started = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      work_came.wait(lock, [&] { return !jobs.empty(); });
      Job job = jobs.front();
      lock.unlock();
      job.function(job.data);
      lock.lock();
      jobs.pop_front();
      --num_pending;
      if (jobs.empty()) work_done.notify_all();
    }
  }
};

std::atomic<Worker*> current_worker{nullptr};
std::mutex start_mutex;
thread_local bool is_worker_thread = false;

Worker& worker() {
  std::lock_guard lock(start_mutex);
  if (current_worker.load() == nullptr) current_worker.store(new Worker);
  Worker* w = current_worker.load();
  if (!w->is_started) {
    w->is_started = true;
    std::thread([w] {
      is_worker_thread = true;
      w->run();
    }).detach();
  }
  return *w;
}

}  // namespace

void enqueue_host_function(void (*function)(void*), void* data) {
  Worker& w = worker();
  std::lock_guard lock(w.mutex);
  w.jobs.push_back({function, data});
  ++w.num_pending;
  w.work_came.notify_one();
}

bool host_functions_pending() {
  Worker* w = current_worker.load();
  return w != nullptr && w->num_pending.load() > 0;
}

void wait_for_host_functions() {
  if (!host_functions_pending() || is_worker_thread) return;
  Worker& w = *current_worker.load();
  std::unique_lock lock(w.mutex);
  w.work_done.wait(lock, [&] { return w.jobs.empty(); });
}

// The worker thread stayed behind in the parent, its queue with it.
void reset_host_functions_after_fork() { current_worker.store(nullptr); }

namespace {

struct StreamCallback {
  cudaStream_t stream;
  cudaStreamCallback_t callback;
  void* data;
};

void run_stream_callback(void* argument) {
  auto* c = static_cast<StreamCallback*>(argument);
  c->callback(c->stream, cudaSuccess, c->data);
  delete c;
}

}  // namespace
}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  MAYA_COUNT_CALL();
  if (function == nullptr) return runtime_result(cudaErrorInvalidValue);
  if (cudaError_t result = maya::check_stream(stream); result != cudaSuccess) return runtime_result(result);
  {
    maya::Call call;
    call.record(maya::Kind::host_func, {maya::stream_id(stream)});
  }
  maya::run_or_capture(stream, [=] { maya::enqueue_host_function(function, data); });
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  if (callback == nullptr) return runtime_result(cudaErrorInvalidValue);
  if (cudaError_t result = maya::check_stream(stream); result != cudaSuccess) return runtime_result(result);
  if (maya::is_capturing(stream)) {
    maya::invalidate_capture(stream);
    return runtime_result(cudaErrorStreamCaptureUnsupported);
  }
  {
    maya::Call call;
    call.record(maya::Kind::host_func, {maya::stream_id(stream)});
  }
  maya::enqueue_host_function(maya::run_stream_callback, new maya::StreamCallback{stream, callback, data});
  return cudaSuccess;
}

}  // extern "C"
