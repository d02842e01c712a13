#include "TokenProof.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

namespace tilewright::dist {

Expected<std::string> randomBytes(size_t count) {
  std::string bytes(count, '\0');
  if (getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))
    return fail(Stage::Communicate, "the operating system gives no random bytes");
  return bytes;
}

std::string proofOf(std::string_view token, std::initializer_list<std::string_view> fields) {
  std::string message;
  for (std::string_view field : fields) {
    message += std::to_string(field.size()) + ":";
    message += field;
  }
  std::string proof(kProofBytes, '\0');
  unsigned size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char *>(message.data()), message.size(),
       reinterpret_cast<unsigned char *>(proof.data()), &size);
  return proof;
}

bool sameProof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

} // namespace tilewright::dist
