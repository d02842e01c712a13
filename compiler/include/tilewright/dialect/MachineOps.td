// Machine level: the statements of a CUDA kernel, in order.
//
// A schedule pass decides what happens when: which tile is copied while which product runs, where a barrier stands,
// which warps do what. Each statement calls a micro-op of templates/ (a tile copy, a matrix product over tiles, an
// online-softmax update); the micro-op's C++ signature is its contract, so a new GPU family adds a template file and a
// schedule pass, and neither an operation here nor a line in the printer. Objects of those templates (shared tiles,
// accumulators, walks) are values of type !tw.object<"C++ type">; statements that change them take them as operands.
#ifndef TILEWRIGHT_MACHINE_OPS
#define TILEWRIGHT_MACHINE_OPS

include "tilewright/dialect/TileOps.td"

def ObjectType : TwType<"Object", "object"> {
  let summary = "An object of a C++ type of the templates: !tw.object<\"Accumulator<32, 64>\">";
  let parameters = (ins StringRefParameter<"C++ type, inside namespace tw">:$spelling);
  let assemblyFormat = "`<` $spelling `>`";
}

def CudaKernelOp : TwOp<"cuda_kernel", [Symbol, IsolatedFromAbove]> {
  let summary = "A __global__ function of the parameter `args` (tw::Args)";
  let description = [{
    `templates` names the template files it needs; `declarations` are lines printed before it (type aliases and
    constants). `min_blocks` is the launch bound's second number, blocks an SM should hold. With `launch_type` the
    function has a second parameter of that type, `launch`: what the host works out for each launch.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$threads, I64Attr:$min_blocks, StrArrayAttr:$templates,
                       StrArrayAttr:$declarations,
                       OptionalAttr<StrAttr>:$launch_type);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name attr-dict-with-keyword $body";
}

def ArgumentOp : TwOp<"argument", [Pure]> {
  let summary = "A field of the kernel's parameter: args.seqQ";
  let arguments = (ins StrAttr:$field);
  let results = (outs AnyType:$value);
  let assemblyFormat = "$field attr-dict `:` type($value)";
}

def FieldOp : TwOp<"field", [Pure]> {
  let summary = "A field of an object: block.tile";
  let arguments = (ins ObjectType:$object, StrAttr:$field);
  let results = (outs AnyType:$value);
  let assemblyFormat = "$object $field attr-dict `:` type($object) `->` type($value)";
}

def NameOp : TwOp<"name", [Pure]> {
  let summary = "Gives a value a name of its own in the printed text: int q0 = ...;";
  let arguments = (ins AnyType:$value, StrAttr:$identifier);
  let results = (outs AnyType:$named);
  let assemblyFormat = "$identifier `=` $value attr-dict `:` type($value) `->` type($named)";
}

def ExpressionOp : TwOp<"expression", [Pure]> {
  let summary = "A C++ expression over operands $0, $1, ...: \"TileK(shared + kOffsetK + $0 * TileK::bytes)\"";
  let arguments = (ins StrAttr:$text, Variadic<AnyType>:$operands);
  let results = (outs AnyType:$value);
  let assemblyFormat = "$text `(` $operands `)` attr-dict `:` functional-type($operands, $value)";
}

def VariableOp : TwOp<"variable"> {
  let summary = "Declares an object: Type name; or, with arguments, Type name(arguments);";
  let arguments = (ins StrAttr:$identifier, Variadic<AnyType>:$arguments);
  let results = (outs AnyType:$object);
  let assemblyFormat = "$identifier `(` $arguments `)` attr-dict `:` functional-type($arguments, $object)";
}

def MicroOp : TwOp<"micro"> {
  let summary = "Calls a micro-op: a statement, or an expression when it has a result";
  let description = [{
    A callee that starts with a dot is a method of the first operand. `template_args` are printed as they are.
  }];
  let arguments = (ins StrAttr:$callee, OptionalAttr<StrAttr>:$template_args, Variadic<AnyType>:$operands);
  let results = (outs Optional<AnyType>:$value);
  let assemblyFormat = [{
    $callee (`<` $template_args^ `>`)? `(` $operands `)` attr-dict `:` functional-type($operands, $value)
  }];
}

def AssignOp : TwOp<"assign"> {
  let summary = "Object becomes the value of an expression: object = value;";
  let arguments = (ins AnyType:$target, AnyType:$value);
  let assemblyFormat = "$target `=` $value attr-dict `:` type($target) `,` type($value)";
}

class BlockOp<string mnemonic> : TwOp<mnemonic, [NoTerminator, SingleBlock, NoRegionArguments]> {
  let arguments = (ins AnyType:$condition);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$condition `:` type($condition) attr-dict-with-keyword $body";
}

def WhileOp : BlockOp<"while"> {
  let summary = "while (condition) { body }; the condition is printed as the expression it is, so it is evaluated anew";
}

def IfOp : BlockOp<"if"> {
  let summary = "if (condition) { body }";
}

def UnrollOp : TwOp<"unroll", [NoTerminator, SingleBlock]> {
  let summary = "A loop over 0 .. count - 1 that the C++ compiler unrolls; ^bb(index)";
  let arguments = (ins I64Attr:$count, StrAttr:$identifier);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$identifier `below` $count attr-dict-with-keyword $body";
}

#endif
