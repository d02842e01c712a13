#include "tilewright/distributed/transport/RankAgreement.h"
#include <fmt/format.h>

namespace tilewright::dist {

Status agree(Transport &transport, Status own) {
  // "", or the stage's number, the message's length, the message, the hint.
  std::string text;
  if (!own)
    text = fmt::format("{} {} {}{}", static_cast<int>(own.error().stage), own.error().message.size(),
                       own.error().message, own.error().hint);
  Expected<std::vector<std::string>> all = transport.exchange(text);
  if (!all) return propagate(all);
  for (size_t rank = 0; rank < all->size(); ++rank) {
    const std::string &found = (*all)[rank];
    if (found.empty()) continue;
    int stage = 0, at = 0;
    size_t length = 0;
    if (std::sscanf(found.c_str(), "%d %zu %n", &stage, &length, &at) < 2)
      return fail(Stage::Communicate, fmt::format("rank {} sent no outcome: is it another version?", rank));
    const std::string rest = found.substr(static_cast<size_t>(at));
    const std::string prefix = all->size() > 1 ? fmt::format("rank {}: ", rank) : "";
    return fail(static_cast<Stage>(stage), prefix + rest.substr(0, length), rest.substr(std::min(length, rest.size())));
  }
  return {};
}

} // namespace tilewright::dist
