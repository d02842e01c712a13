// libtilewright inside a host's process: it is opened and closed like any plug-in, beside another LLVM, and leaves the
// process as it found it. LIBTILEWRIGHT is the library's file, defined by the build.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include <cmath>
#include <csignal>
#include <cstring>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <thread>
#include <tilewright.h>
#include <unistd.h>
#include <vector>

namespace {

/// The library, opened for a scope.
struct Library {
  void *handle = dlopen(LIBTILEWRIGHT, RTLD_NOW | RTLD_LOCAL);
  Library() {
    if (!handle) FAIL(dlerror());
  }
  ~Library() { dlclose(handle); }
  Library(const Library &) = delete;
  Library &operator=(const Library &) = delete;

  template <class F> F get(F, const char *name) const { return reinterpret_cast<F>(dlsym(handle, name)); }
};
#define TW(function) library.get(&function, #function)

constexpr int64_t kRows = 50, kDim = 16, kElements = kRows * kDim;
constexpr int64_t kShape[4] = {1, kRows, 1, kDim};

tw_tensor view(std::vector<float> &values) { return {values.data(), TW_CPU, 0, 4, {2, 32, 1}, kShape, nullptr, 0}; }

/// Causal attention whose first row of o is the first row of v.
struct Job {
  std::vector<float> q = std::vector<float>(kElements, 0.5f), k = q, v = q, o = q, lse = std::vector<float>(kRows);
  tw_attention_args args;

  Job() {
    for (int64_t i = 0; i < kElements; ++i)
      v[i] = static_cast<float>(i);
    TW_INIT(&args);
    args.q = view(q), args.k = view(k), args.v = view(v), args.o = view(o);
    args.lse = lse.data();
  }
  bool isRight() const { return std::equal(v.begin(), v.begin() + kDim, o.begin()); }
};

tw_context *makeContext(const Library &library, const std::string &cache) {
  tw_context_options options;
  TW_INIT(&options);
  options.cache_directory = cache.c_str();
  tw_context *context = nullptr;
  REQUIRE(TW(tw_context_create)(&options, &context) == TW_OK);
  return context;
}

int prepare(const Library &library, tw_context *context, tw_attention **attention, const char *mask = nullptr) {
  tw_problem problem;
  TW(tw_problem_init)(&problem, sizeof problem);
  problem.seq_q = problem.seq_kv = kRows;
  problem.dim_qk = problem.dim_v = kDim;
  problem.dtype = "fp32";
  problem.causal = 1;
  problem.mask = mask;
  tw_prepare_options options;
  TW_INIT(&options);
  options.device_type = TW_CPU;
  return TW(tw_attention_prepare)(context, &problem, &options, attention);
}

/// From nothing to a result and back.
bool works(const Library &library, const std::string &cache) {
  tw_context *context = makeContext(library, cache);
  tw_attention *attention = nullptr;
  Job job;
  const bool prepared = prepare(library, context, &attention) == TW_OK;
  TW(tw_context_destroy)(context); // an attention outlives it
  const bool launched = prepared && TW(tw_attention_forward)(attention, &job.args, nullptr) == TW_OK;
  TW(tw_attention_destroy)(attention);
  return launched && job.isRight();
}

/// What the process does on each signal: handlers and flags.
std::vector<std::pair<void *, int>> signalActions() {
  std::vector<std::pair<void *, int>> actions;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action;
    if (sigaction(signal, nullptr, &action) == 0)
      actions.emplace_back(reinterpret_cast<void *>(action.sa_handler), action.sa_flags);
  }
  return actions;
}

void hostsHandler(int) {}

} // namespace

TEST_CASE("beside another LLVM whose symbols come first") {
  void *other = nullptr;
  for (const char *name : {"libLLVM-14.so.1", "libLLVM-15.so.1", "libLLVM.so.22.1"})
    if (!other) other = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (!other) {
    MESSAGE("skipped: no libLLVM");
    return;
  }
  auto createContext = reinterpret_cast<void *(*)()>(dlsym(other, "LLVMContextCreate"));
  auto createModule =
      reinterpret_cast<void *(*)(const char *, void *)>(dlsym(other, "LLVMModuleCreateWithNameInContext"));
  auto disposeModule = reinterpret_cast<void (*)(void *)>(dlsym(other, "LLVMDisposeModule"));
  auto disposeContext = reinterpret_cast<void (*)(void *)>(dlsym(other, "LLVMContextDispose"));
  REQUIRE((createContext && createModule && disposeModule && disposeContext));
  for (int turn = 0; turn < 2; ++turn) {
    void *context = createContext(), *module = createModule("host", context);
    {
      Library library;
      CHECK(works(library, "")); // no cache: the compiler runs
    }
    disposeModule(module);
    disposeContext(context);
  }
}

TEST_CASE("opened and closed many times") {
  TemporaryFolder folder;
  for (int turn = 0; turn < 20; ++turn) {
    Library library;
    CHECK(works(library, folder.path));
  }
}

TEST_CASE("nothing is printed, and no signal has another handler, whatever happens") {
  struct sigaction own;
  std::memset(static_cast<void *>(&own), 0, sizeof own);
  own.sa_handler = hostsHandler;
  struct sigaction before;
  sigaction(SIGSEGV, &own, &before);
  const auto actions = signalActions();
  TemporaryFolder folder;
  const std::string path = folder.path + "/output";
  const int output = open(path.c_str(), O_CREAT | O_RDWR, 0600), out = dup(1), err = dup(2);
  fflush(stdout);
  dup2(output, 1);
  dup2(output, 2);
  bool right = false, refused = false;
  {
    Library library;
    right = works(library, "");
    tw_context *context = makeContext(library, "");
    tw_attention *attention = nullptr;
    refused = prepare(library, context, &attention, "k <= nonsense") == TW_ERROR_INPUT && !attention;
    TW(tw_context_destroy)(context);
  }
  fflush(stdout);
  dup2(out, 1);
  dup2(err, 2);
  close(output);
  CHECK(right);
  CHECK(refused);
  CHECK(readFile(path) == "");
  CHECK((actions == signalActions()));
  sigaction(SIGSEGV, &before, nullptr);
}

TEST_CASE("a process may fork between its context and the first use") {
  Library library;
  tw_context *context = makeContext(library, "");
  auto use = [&] {
    tw_attention *attention = nullptr;
    Job job;
    const bool right = prepare(library, context, &attention) == TW_OK &&
                       TW(tw_attention_forward)(attention, &job.args, nullptr) == TW_OK && job.isRight();
    TW(tw_attention_destroy)(attention);
    return right;
  };
  const pid_t child = fork();
  if (child == 0) _exit(use() ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(use());
  TW(tw_context_destroy)(context);
}

TEST_CASE("two contexts share nothing: each compiles, one goes while the other works") {
  Library library;
  int compiles = 0;
  auto count = [](void *user, int32_t level, const char *message) {
    if (level == TW_LOG_INFO && std::strstr(message, "compiling")) ++*static_cast<int *>(user);
  };
  tw_context_options options;
  TW_INIT(&options);
  options.cache_directory = "";
  options.log = count;
  options.log_user = &compiles;
  tw_context *first = nullptr, *second = nullptr;
  REQUIRE(TW(tw_context_create)(&options, &first) == TW_OK);
  REQUIRE(TW(tw_context_create)(&options, &second) == TW_OK);
  tw_attention *ofFirst = nullptr, *ofSecond = nullptr;
  REQUIRE(prepare(library, first, &ofFirst) == TW_OK);
  REQUIRE(prepare(library, second, &ofSecond) == TW_OK);
  CHECK(compiles == 2);
  TW(tw_attention_destroy)(ofFirst);
  TW(tw_context_destroy)(first);
  Job job;
  CHECK(TW(tw_attention_forward)(ofSecond, &job.args, nullptr) == TW_OK);
  CHECK(job.isRight());
  CHECK(std::strstr(TW(tw_attention_describe)(ofSecond), "\"role\":\"forward\""));
  TW(tw_attention_destroy)(ofSecond);
  TW(tw_context_destroy)(second);
}

TEST_CASE("errors are this thread's, and say what is wrong") {
  Library library;
  tw_context *context = makeContext(library, "");
  tw_attention *attention = nullptr;
  auto last = [&] { return TW(tw_last_error)(); };
  CHECK(prepare(library, context, &attention, "k <= nonsense") == TW_ERROR_INPUT);
  CHECK(std::strcmp(last()->stage, "input") == 0);
  CHECK(std::strstr(last()->message, "nonsense"));
  std::thread([&] { CHECK(last()->code == TW_OK); }).join();

  CHECK(TW(tw_attention_prepare)(nullptr, nullptr, nullptr, &attention) == TW_ERROR_INPUT);
  CHECK(TW(tw_attention_prepare_json)(context, "{\"batch\": 1, \"sheep\": 2}", nullptr, &attention) == TW_ERROR_INPUT);
  CHECK(std::strstr(last()->message, "sheep"));
  CHECK(TW(tw_attention_prepare_json)(context, "{", nullptr, &attention) == TW_ERROR_INPUT);
  tw_prepare_options how;
  TW_INIT(&how);
  how.device_type = TW_CPU;
  how.schedule = "{\"tile_q\": 48, \"knots\": 3}";
  CHECK(TW(tw_attention_prepare_json)(context, "{}", &how, &attention) == TW_ERROR_INPUT);
  CHECK(std::strstr(last()->message, "knots"));
  how.schedule = "{\"tile_q\": 32}";
  REQUIRE(TW(tw_attention_prepare_json)(context, "{\"dtype\": \"fp32\"}", &how, &attention) == TW_OK);
  CHECK(std::strstr(TW(tw_attention_describe)(attention), "tile_q=32"));
  TW(tw_attention_destroy)(attention);

  REQUIRE(prepare(library, context, &attention) == TW_OK);
  auto refused = [&](const tw_attention_args &args, const char *part) {
    CHECK(TW(tw_attention_forward)(attention, &args, nullptr) == TW_ERROR_INPUT);
    INFO(last()->message);
    CHECK(std::strstr(last()->message, part));
  };
  Job job;
  tw_attention_args args = job.args;
  const int64_t shorter[4] = {1, kRows - 1, 1, kDim};
  args.v.shape = shorter;
  refused(args, "v: expected shape (1, 50, 1, 16) to fit the other tensors, found (1, 49, 1, 16)");
  args = job.args;
  const int64_t repeated[4] = {0, 0, 0, 1};
  args.o.strides = repeated;
  refused(args, "o: is written, but an axis of several entries has stride 0");
  args = job.args;
  args.scale = NAN;
  refused(args, "scale: expected a finite number");
  args = job.args;
  args.o.dtype.bits = 16;
  refused(args, "o: expected float32 elements, as the problem says, found float16");
  args = job.args;
  args.k.device_type = TW_CUDA;
  refused(args, "k: expected memory of the CPU, found CUDA device 0");
  args = job.args;
  args.q.data = nullptr;
  refused(args, "q: no data");
  args = job.args;
  args.struct_size += 8;
  refused(args, "struct_size");
  CHECK(TW(tw_attention_backward)(attention, &job.args, nullptr) == TW_ERROR_LAUNCH);
  CHECK(std::strstr(last()->message, "without gradients"));
  TW(tw_attention_destroy)(attention);
  TW(tw_context_destroy)(context);
}

TEST_CASE("structs of an older version, which had fewer fields, are taken") {
  Library library;
  tw_context *context = makeContext(library, "");
  tw_prepare_options options;
  TW_INIT(&options);
  options.struct_size = offsetof(tw_prepare_options, target);
  options.device_type = TW_CPU;
  options.target = "a field that the older version does not have";
  tw_attention *attention = nullptr;
  CHECK(TW(tw_attention_prepare_json)(context, "{\"dtype\": \"fp32\"}", &options, &attention) == TW_OK);
  tw_workspace workspace{offsetof(tw_workspace, backward_bytes), -1, -1};
  std::vector<float> values(64);
  const int64_t shape[4] = {1, 1, 1, 64};
  tw_attention_args args;
  TW_INIT(&args);
  args.q = args.k = {values.data(), TW_CPU, 0, 4, {2, 32, 1}, shape, nullptr, 0};
  CHECK(TW(tw_attention_workspace)(attention, &args, &workspace) == TW_OK);
  CHECK(workspace.forward_bytes >= 0);
  CHECK(workspace.backward_bytes == -1);
  TW(tw_attention_destroy)(attention);
  TW(tw_context_destroy)(context);
}
