// OpenSSL's one-shot calls fetch an implementation from its provider registry: about 10 us a call, and several
// milliseconds for the first one, which loads its configuration. A cache hit may cost no more than that altogether, so
// this uses the plain functions, which are deprecated but in every OpenSSL 3.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "tilewright/plan/KernelPlan.h"
#include <openssl/sha.h>

namespace tilewright {

std::string sha256Hex(std::string_view bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, bytes.data(), bytes.size());
  SHA256_Final(digest, &context);
  std::string hex;
  hex.reserve(2 * sizeof(digest));
  for (unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

} // namespace tilewright
