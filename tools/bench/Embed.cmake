# cmake -DROOT=... -DOUTPUT=... -DNAMES=a;b -P Embed.cmake: writes one C++ file that holds the named files.
set(arrays "")
set(cases "")
set(count 0)
foreach(name IN LISTS NAMES)
  # Hexadecimal keeps semicolons, brackets and quotes out of CMake's list and escape rules.
  file(READ ${ROOT}/${name} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "const unsigned char file${count}[] = {${bytes}};\n")
  string(APPEND cases
    "  if (name == \"${name}\") return {reinterpret_cast<const char *>(file${count}), sizeof(file${count})};\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include <string_view>\n\nnamespace {\n${arrays}} // namespace\n
namespace tilewright::bench {
std::string_view embeddedFile(std::string_view name) {\n${cases}  return {};\n}
} // namespace tilewright::bench\n")
