// The host's clocks as an extension's code reads them: the modelled ones, as Python's are. The linker puts these in the
// place of the system's (`--wrap`, extensions.py); threads wait by the real ones.
#include "ask.h"
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <condition_variable>
#include <pthread.h>
#include <thread>
#include <sys/time.h>

namespace {
constexpr long long SECOND = 1000000000;
long long real(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}
// What a thread of Python's last read, which starts others and may have the lock.
std::atomic<long long> latest{0}, day_of_latest{0};
// A thread that Python does not know reads without its lock: where its last call of CUDA ended, or it was started, and
// what it has taken itself since by the real clock.
thread_local struct { long long told = -1, at = 0, ran = 0; } apart;
bool is_apart() { return windtunnel::answer && !windtunnel::of_python(); }
long long own_time() {
  const long long now = real(CLOCK_MONOTONIC);
  if (apart.told < 0) apart.told = latest ? latest.load() : now, apart.at = now;
  return apart.told + apart.ran + now - apart.at;
}
// Nanoseconds, by Python's name of the clock.
long long read(const char *name, clockid_t id) {
  return windtunnel::of_python() && windtunnel::answered() ? windtunnel::ask_number(name) : real(id);
}
long long steady() {
  if (is_apart()) return own_time();
  const long long now = read("monotonic", CLOCK_MONOTONIC);
  if (windtunnel::answer) latest = now;
  return now;
}
long long of_day() {
  if (is_apart() && day_of_latest) return own_time() + day_of_latest;
  return read("time", CLOCK_REALTIME);
}
void before_a_thread() {
  if (windtunnel::of_python() && windtunnel::answered()) day_of_latest = of_day() - steady();
}
bool is_steady(clockid_t id) { return id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_RAW || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_BOOTTIME; }
bool is_of_day(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }
timespec as_timespec(long long ns) { return {(time_t)(ns / SECOND), (long)(ns % SECOND)}; }
template <class F> auto without_lock(F waited) {
  void *state = windtunnel::let_go();
  const auto found = waited();
  windtunnel::take_back(state);
  return found;
}
// A wait that ends at a time of the modelled clock at the latest takes as long by the real one; then that time has come.
template <class F> int wait(clockid_t id, const timespec *until, F waited) {
  const long long wanted = until->tv_sec * SECOND + until->tv_nsec, left = wanted - (is_steady(id) ? steady() : of_day());
  const timespec end = as_timespec(real(id) + left);
  const int found = without_lock([&] { return waited(&end); });
  if (found == ETIMEDOUT && !is_apart() && windtunnel::answered()) windtunnel::ask_number("passed", left);
  return found;
}
}  // namespace

namespace windtunnel {
Turn::Turn() : apart(is_apart()) {
  if (apart) ::apart.ran = own_time() - ::apart.told;
}
Turn::~Turn() {
  if (apart) ::apart.told = answer("monotonic", nullptr, 0), ::apart.at = real(CLOCK_MONOTONIC);
}
}  // namespace windtunnel

void start_thread(std::thread *, void *, void (*)()) __asm__("_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE");

extern "C" {
[[noreturn]] void __wrap_exit(int code) {  // Python does not hear of it, and so would leave no records
  if (windtunnel::of_python() && windtunnel::answered()) windtunnel::ask_number("leaving");
  exit(code);
}
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(std::thread *thread, void *state, void (*depends)()) {
  before_a_thread();
  start_thread(thread, state, depends);
}
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
  before_a_thread();
  return pthread_create(thread, how, run, with);
}
std::chrono::steady_clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() { return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(steady())); }
std::chrono::system_clock::time_point __wrap__ZNSt6chrono3_V212system_clock3nowEv() { return std::chrono::system_clock::time_point(std::chrono::nanoseconds(of_day())); }
int __wrap_clock_gettime(clockid_t id, timespec *t) {
  if (!is_steady(id) && !is_of_day(id)) return clock_gettime(id, t);
  *t = as_timespec(is_steady(id) ? steady() : of_day());
  return 0;
}
int __wrap_gettimeofday(timeval *t, void *) {
  const long long ns = of_day();
  *t = {(time_t)(ns / SECOND), (suseconds_t)(ns % SECOND / 1000)};
  return 0;
}
time_t __wrap_time(time_t *t) {
  const time_t now = (time_t)(of_day() / SECOND);
  return t ? *t = now : now;
}
clock_t __wrap_clock() { return (clock_t)(steady() / (SECOND / CLOCKS_PER_SEC)); }  // a host that waits for a GPU is busy
int __wrap_pthread_join(pthread_t thread, void **result) { return without_lock([=] { return pthread_join(thread, result); }); }
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) { return without_lock([=] { return pthread_cond_wait(c, m); }); }
void __wrap__ZNSt6thread4joinEv(std::thread *thread) { without_lock([=] { return thread->join(), 0; }); }
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable *v, std::unique_lock<std::mutex> &lock) { without_lock([&] { return v->wait(lock), 0; }); }
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const timespec *until) {
  return wait(CLOCK_REALTIME, until, [=](const timespec *end) { return pthread_cond_timedwait(c, m, end); });
}
int __wrap_pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t id, const timespec *until) {
  return wait(id, until, [=](const timespec *end) { return pthread_cond_clockwait(c, m, id, end); });
}
}
