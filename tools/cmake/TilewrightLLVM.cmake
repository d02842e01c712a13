# LLVM and MLIR 22.1, linked statically: the binaries need nothing of LLVM at run time, and a host application with
# another LLVM is safe. Debian's exported MLIR archives name the shared libMLIR and libLLVM as dependencies; both are
# removed here and the LLVM components named instead.

find_program(LLVM_CONFIG_22 llvm-config-22)
if(LLVM_CONFIG_22)
  execute_process(COMMAND ${LLVM_CONFIG_22} --prefix OUTPUT_VARIABLE LLVM_22_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND CMAKE_PREFIX_PATH ${LLVM_22_PREFIX})
endif()
find_package(MLIR 22.1 REQUIRED CONFIG)

list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
include(TableGen)
include(AddLLVM)
include(AddMLIR)

# TableGen finds our .td files and MLIR's through directory-wide includes; nothing else uses them.
include_directories(SYSTEM ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
include_directories(${PROJECT_SOURCE_DIR}/compiler/include)

foreach(lib IN LISTS MLIR_EXPORTED_TARGETS)
  get_target_property(kind ${lib} TYPE)
  if(kind STREQUAL "STATIC_LIBRARY")
    get_target_property(dependencies ${lib} INTERFACE_LINK_LIBRARIES)
    if(dependencies)
      list(REMOVE_ITEM dependencies MLIR LLVM "$<LINK_ONLY:LLVM>" "$<LINK_ONLY:MLIR>")
      set_target_properties(${lib} PROPERTIES INTERFACE_LINK_LIBRARIES "${dependencies}")
    endif()
  endif()
endforeach()

llvm_map_components_to_libnames(llvm_components support core native nativecodegen orcjit passes target linker analysis
  transformutils irreader bitreader bitwriter frontendopenmp perfjitevents)

add_library(tilewright_llvm INTERFACE)
target_link_libraries(tilewright_llvm INTERFACE
  MLIRIR MLIRParser MLIRPass MLIRSupport MLIRTransforms MLIRTransformUtils
  MLIRArithDialect MLIRArithTransforms MLIRFuncDialect MLIRMathDialect MLIRMathTransforms MLIRSCFDialect
  MLIRVectorDialect MLIRVectorTransforms MLIRMemRefDialect MLIRLLVMDialect MLIRUBDialect MLIRControlFlowDialect
  MLIRSCFToControlFlow MLIRVectorToSCF MLIRVectorToLLVMPass MLIRVectorToLLVM MLIRMathToLLVM MLIRArithToLLVM
  MLIRIndexToLLVM MLIRFuncToLLVM MLIRControlFlowToLLVM MLIRMemRefToLLVM MLIRUBToLLVM MLIRReconcileUnrealizedCasts
  MLIRLLVMToLLVMIRTranslation MLIRBuiltinToLLVMIRTranslation MLIRTargetLLVMIRExport MLIROptLib
  ${llvm_components})
