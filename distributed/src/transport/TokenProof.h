// Proof of knowing the job's token without sending it: HMAC-SHA256 over a role and both sides' nonces (RFC 2104).
#pragma once

#include "tilewright/Error.h"
#include <string>
#include <string_view>

namespace tilewright::dist {

constexpr size_t kNonceBytes = 16, kProofBytes = 32;

/// Random bytes from the operating system.
Expected<std::string> randomBytes(size_t count);
/// Fields are length-prefixed, so that no two lists of fields give the same bytes.
std::string proofOf(std::string_view token, std::initializer_list<std::string_view> fields);
/// In constant time.
bool sameProof(std::string_view a, std::string_view b);

} // namespace tilewright::dist
