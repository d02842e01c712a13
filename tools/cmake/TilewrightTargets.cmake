# What every Tilewright target shares: warnings, sanitizers, the linker, and one function per kind of target.

add_library(tilewright_options INTERFACE)
# -Wrestrict warns of valid std::string concatenation in GCC 12 (GCC bug 105651).
target_compile_options(tilewright_options INTERFACE -Wall -Wextra -Wno-restrict $<$<BOOL:${TILEWRIGHT_WERROR}>:-Werror>)
if(TILEWRIGHT_SANITIZE)
  target_compile_options(tilewright_options INTERFACE -fsanitize=${TILEWRIGHT_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(tilewright_options INTERFACE -fsanitize=${TILEWRIGHT_SANITIZE})
endif()

find_program(TILEWRIGHT_MOLD mold)
if(TILEWRIGHT_MOLD)
  target_link_options(tilewright_options INTERFACE -fuse-ld=mold)
endif()

# Only what headers show by TILEWRIGHT_PUBLIC is visible outside a shared library that holds the target's objects. Inline
# variables of templates are not unique in the process: that would forbid dlclose.
function(tilewright_hide_symbols target)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
endfunction()

# tilewright_doctest(NAME SOURCES... LIBS...): one doctest executable, registered with ctest under its own name.
# A test case whose name holds [gpu] goes to a second ctest entry labelled gpu, which reports "skipped" without a device.
function(tilewright_doctest name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tilewright_options ${ARG_LIBS})
  target_compile_definitions(${name} PRIVATE DOCTEST_CONFIG_SUPER_FAST_ASSERTS)
  add_test(NAME ${name} COMMAND ${name} --test-case-exclude=*[gpu]*)
endfunction()
