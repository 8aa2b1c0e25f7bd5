"""Compiles the kernels with LLVM, each once, and makes them known by name to the code that calls them.

The object code is kept in the cache folder and loaded from there at later starts.
"""

import os
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
from llvmlite import ir

from kernels.cpu.fused.instructions import emitting_for
from kernels.cpu.ir_tools import KERNELS

_OPTIMISATION = 3


def load_kernels(folder: Path | None, instruction_set: str) -> llvm.ExecutionEngine:
    """Compiles or loads all kernels and registers their symbols, which die with the engine that is returned.

    `folder` keeps the object code; None compiles each time.
    """
    path = None if folder is None else folder / f"kernels-{instruction_set}.o"
    code = path.read_bytes() if path is not None and path.is_file() else _compile(instruction_set)
    if path is not None and not path.is_file():
        _write(path, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(instruction_set))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    for kernel in KERNELS:
        llvm.add_symbol(kernel.name, engine.get_function_address(kernel.name))
    return engine


def build_module(instruction_set: str) -> ir.Module:
    """One LLVM function for each kernel."""
    module = ir.Module("pageturn_kernels")
    module.triple = llvm.get_process_triple()
    for kernel in KERNELS:
        kind = ir.FunctionType(ir.VoidType(), kernel.argument_types)
        function = ir.Function(module, kind, kernel.name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        with emitting_for(instruction_set):
            kernel.emit(builder, *function.args)
        builder.ret_void()
    return module


def _compile(instruction_set: str) -> bytes:
    machine = target_machine(instruction_set)
    module = llvm.parse_assembly(str(build_module(instruction_set)))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)


def target_machine(instruction_set: str) -> llvm.TargetMachine:
    """What emits code for this processor as far as a set goes."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=_features(instruction_set),
        opt=_OPTIMISATION,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


def _features(instruction_set: str) -> str:
    """What the processor has, in LLVM's notation, without what lies beyond the set."""
    features = llvm.get_host_cpu_features()
    if instruction_set == "avx2":
        for name in features:
            features[name] &= not name.startswith(("avx512", "avx10", "evex512"))
    return features.flatten()


def _write(path: Path, code: bytes) -> None:
    """All or nothing: another process may be reading."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(code)
    os.replace(file.name, path)
