# Writes the C++ file that defines tilewright::kGeneratorId: SHA-256 over every source that decides what code a plan
# turns into. Run as `cmake -DROOT=... -DLIST=... -DOUTPUT=... -P GeneratorId.cmake`; LIST names a file with one path a
# line, relative to ROOT. Names are hashed with contents, so moving a file changes the id as well.

cmake_minimum_required(VERSION 3.25)
file(STRINGS "${LIST}" files)
list(SORT files COMPARE STRING)
set(text "")
foreach(file IN LISTS files)
  file(SHA256 "${ROOT}/${file}" hash)
  string(APPEND text "${hash}  ${file}\n")
endforeach()
string(SHA256 id "${text}")
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT
"// Made by tools/cmake/GeneratorId.cmake.
#include \"tilewright/CodeGenerator.h\"

const char *const tilewright::kGeneratorId = \"${id}\";
")
