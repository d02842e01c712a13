#include "CError.h"
#include "CHandles.h"
#include "SizedStruct.h"
#include "tilewright/BuiltInCompiler.h"

using namespace tilewright;

static_assert(TW_LOG_DEBUG == static_cast<int>(LogLevel::Debug) && TW_LOG_INFO == static_cast<int>(LogLevel::Info) &&
              TW_LOG_WARNING == static_cast<int>(LogLevel::Warning));

int32_t tw_version(void) { return TW_VERSION_MAJOR * 10000 + TW_VERSION_MINOR * 100 + TW_VERSION_PATCH; }

int32_t tw_has_compiler(void) {
  try {
    return optionsWithCompiler().generator != nullptr;
  } catch (...) {
    return 0;
  }
}

int tw_context_create(const tw_context_options *options, tw_context **context) {
  return c::guarded([&]() -> Status {
    if (!context) return fail(Stage::Input, "context: expected where to put the handle, found null");
    *context = nullptr;
    tw_context_options given{};
    if (Status status = c::take("tw_context_options", options, given); !status) return status;
    ContextOptions how = optionsWithCompiler();
    if (given.log)
      how.log = [log = given.log, user = given.log_user](LogLevel level, std::string_view message) {
        log(user, static_cast<int32_t>(level), std::string(message).c_str());
      };
    if (given.cache_directory) how.cacheDir = given.cache_directory;
    Expected<std::shared_ptr<Context>> made = Context::create(std::move(how));
    if (!made) return propagate(made);
    *context = new tw_context{std::move(*made)};
    return {};
  });
}

void tw_context_destroy(tw_context *context) { delete context; }
