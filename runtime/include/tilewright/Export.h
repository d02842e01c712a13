// What the shared libraries show to their hosts: the namespaces of public headers. All else stays hidden, LLVM first of
// all, so that a host may bring its own.
#pragma once

#define TILEWRIGHT_PUBLIC __attribute__((visibility("default")))
