#include "OptionAgreement.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::train {

Status agreeOnOptions(dist::Transport &transport, const std::map<std::string, std::string> &own) {
  using Json = nlohmann::json;
  Expected<std::vector<std::string>> texts =
      transport.exchange(Json(own).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!texts) return propagate(texts);
  Json first;
  for (size_t rank = 0; rank < texts->size(); ++rank) {
    Json options = Json::parse((*texts)[rank], nullptr, false);
    if (!options.is_object())
      return fail(Stage::Communicate, fmt::format("rank {} sent no options: is it another version?", rank));
    if (rank == 0) first = std::move(options);
    if (rank == 0 || options == first) continue;
    Json names = first; // of both, in their order
    names.update(options);
    for (const auto &[name, value] : names.items()) {
      auto shown = [&name = name](const Json &all) { return all.contains(name) ? all[name].dump() : "nothing"; };
      const std::string expected = shown(first), found = shown(options);
      if (expected != found)
        return fail(Stage::Input,
                    fmt::format("rank {}: {}: expected {}, as rank 0 has, found {}", rank, name, expected, found),
                    "start all ranks with the same options and data");
    }
  }
  return {};
}

} // namespace tilewright::train
