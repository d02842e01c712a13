# cmake -DROOT=... -DOUTPUT=... -DNAMES=a;b -P EmbedTemplates.cmake: writes one C++ file that holds the named files.
set(names "")
set(texts "")
set(count 0)
foreach(name IN LISTS NAMES)
  # Hexadecimal keeps semicolons, brackets and quotes of the source out of CMake's list and escape rules.
  file(READ ${ROOT}/${name} bytes HEX)
  string(LENGTH "${bytes}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "const char text${count}[] = {${bytes}};\n")
  string(APPEND names "    \"${name}\",\n")
  string(APPEND texts "    {text${count}, ${length}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"EmbeddedTemplates.h\"\n\nnamespace {\n${arrays}} // namespace\n
namespace tilewright {
const std::string_view embeddedTemplateNames[] = {\n${names}};
const std::string_view embeddedTemplateTexts[] = {\n${texts}};
const size_t embeddedTemplateCount = ${count};
} // namespace tilewright\n")
