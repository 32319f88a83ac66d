// How host code asks the emulated driver: by a function's name and its arguments as 64-bit numbers.
#pragma once
#include <cuda_runtime_api.h>
#include <cstring>
#include <type_traits>

namespace windtunnel {
constexpr long long RAISED = -0x7fffffffffffffffll - 1;  // the emulation raised an exception of Python's
typedef long long (*Answer)(const char *name, const long long *arguments, int count);
extern Answer answer;
bool answered();  // whether an emulation answers, which is looked for where none has been met yet
bool of_python();  // whether this thread is one of Python's: others may not wait for its lock, whose owner may wait for them
void *let_go();  // of Python's lock, where this thread has it: those that it waits for may need it to ask
void take_back(void *state);
// A question of a thread that Python does not know, whose clock goes on where the answer ends.
class Turn {
  const bool apart;
 public:
  Turn();
  ~Turn();
};
extern thread_local cudaError_t last;
[[noreturn]] void raise();

template <class T> long long number(T value) {
  if constexpr (std::is_pointer_v<T>) return (long long)(size_t)value;
  else if constexpr (std::is_null_pointer_v<T>) return 0;
  else return (long long)value;
}

// The number that the emulation answers.
template <class... A> long long ask_number(const char *name, A... arguments) {
  const long long given[] = {number(arguments)..., 0};
  if (!answered()) return (long long)cudaErrorNoDevice;
  const Turn turn;
  const long long found = answer(name, given, (int)sizeof...(A));
  if (found == RAISED) raise();
  return found;
}

// The same where it is an error, which cudaGetLastError returns afterwards.
template <class... A> cudaError_t ask(const char *name, A... arguments) {
  const auto error = (cudaError_t)ask_number(name, arguments...);
  if (error != cudaSuccess) last = error;
  return error;
}
}  // namespace windtunnel
