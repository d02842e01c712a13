# lit: every .mlir file below this folder is a test; its RUN lines pipe tilewright-opt into FileCheck.
import os
import lit.formats

config.name = "Tilewright"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = os.path.dirname(__file__)
config.environment["PATH"] = os.pathsep.join([config.tools_dir, config.llvm_tools_dir, os.environ["PATH"]])
