# The two libraries that hosts link: libtilewright-runtime and libtilewright. Their symbols have versions and hide what
# they are made of; before 1.0 each minor version is an interface of its own.

configure_file(${CMAKE_CURRENT_LIST_DIR}/Symbols.map.in ${PROJECT_BINARY_DIR}/Symbols.map @ONLY)

# tilewright_shared_library(TARGET NAME file-name EXPORT name PARTS targets... SOURCES ... LIBS ...): the objects of the
# static libraries PARTS in one shared library, exported as Tilewright::<EXPORT>.
function(tilewright_shared_library target)
  cmake_parse_arguments(ARG "" "NAME;EXPORT" "PARTS;SOURCES;LIBS" ${ARGN})
  set(objects "")
  foreach(part IN LISTS ARG_PARTS)
    list(APPEND objects $<TARGET_OBJECTS:${part}>)
  endforeach()
  add_library(${target} SHARED ${ARG_SOURCES} ${objects})
  add_library(Tilewright::${ARG_EXPORT} ALIAS ${target})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${ARG_NAME} EXPORT_NAME ${ARG_EXPORT}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${PROJECT_BINARY_DIR}/Symbols.map
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  tilewright_hide_symbols(${target})
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # Sanitizers leave symbols to the program.
  target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_BINARY_DIR}/Symbols.map -Wl,--gc-sections
    $<$<NOT:$<BOOL:${TILEWRIGHT_SANITIZE}>>:-Wl,-z,defs>)
  target_link_libraries(${target}
    PUBLIC tl::expected nlohmann_json::nlohmann_json
    PRIVATE $<BUILD_INTERFACE:tilewright_options> ${ARG_LIBS})
endfunction()
