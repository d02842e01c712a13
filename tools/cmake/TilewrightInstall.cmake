# What `cmake --install` puts where: libraries, public headers, the CMake package and pkg-config files.
include(CMakePackageConfigHelpers)

set(libraries tilewright_runtime_shared)
if(TILEWRIGHT_BUILD_COMPILER)
  list(APPEND libraries tilewright_shared)
endif()
install(TARGETS ${libraries} EXPORT TilewrightTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libraries NAMELINK_COMPONENT development
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILE_SET tables DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Tilewright)
install(EXPORT TilewrightTargets NAMESPACE Tilewright:: DESTINATION ${package} COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TilewrightConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TilewrightConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TilewrightConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TilewrightConfig.cmake ${PROJECT_BINARY_DIR}/TilewrightConfigVersion.cmake
  DESTINATION ${package} COMPONENT development)

# tilewright_pkg_config(NAME DESCRIPTION): finds its prefix from its own place, so that an install may be moved.
function(tilewright_pkg_config name description)
  file(RELATIVE_PATH PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  set(PC_NAME ${name})
  set(PC_DESCRIPTION "${description}")
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/tilewright.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endfunction()
tilewright_pkg_config(tilewright-runtime "Runs attention kernels from caches and bundles")
if(TILEWRIGHT_BUILD_COMPILER)
  tilewright_pkg_config(tilewright "Compiles attention kernels and runs them")
endif()
