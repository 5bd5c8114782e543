"""Compiles the modules that decide how fast foldmq is, where that is possible.

``tool.foldmq.compiled`` in pyproject.toml lists them; mypyc compiles them to C. Without a C
compiler or the headers of Python the package has the same modules as plain Python. The environment
variable ``FOLDMQ_COMPILE`` says otherwise: ``0`` does not compile, ``1`` fails where compiling
fails.

A wheel has the packages in the folder ``foldmq_packages``: ``foldmq.py`` says why.

Editable installations are never compiled, because a compiled module would hide later changes of its
source: ``tools/compile_modules.py`` compiles for a checkout.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

_HERE = Path(__file__).resolve().parent
_PACKAGES = "foldmq_packages"
_CHECK = "#include <Python.h>\nint foldmq_can_compile(void) { return PY_VERSION_HEX != 0; }\n"


class ParallelBuild(build_ext):
    """Compiles the C files of an extension on all processors; setuptools does one at a time."""

    def build_extensions(self) -> None:
        """Compile and link."""
        self.compiler.compile = self._compile
        super().build_extensions()

    def _compile(
        self,
        sources: list[str],
        output_dir: str | None = None,
        macros: Any = None,
        include_dirs: Any = None,
        debug: bool = False,
        extra_preargs: Any = None,
        extra_postargs: Any = None,
        depends: Any = None,
    ) -> list[str]:
        compiler = self.compiler
        macros, objects, postargs, flags, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        arguments = compiler._get_cc_args(flags, debug, extra_preargs)

        def compile_one(name: str) -> None:
            source, suffix = build[name]
            compiler._compile(name, source, suffix, arguments, postargs, flags)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, [name for name in objects if name in build]))
        return objects


class NamespacedWheel(bdist_wheel):
    """Puts the packages, and what mypyc compiled for all of them, into one folder of the wheel."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: Any, **options: Any) -> None:
        """Write the last file of the metadata; the packages are beside it by then."""
        super().write_wheelfile(wheelfile_base, *arguments, **options)
        metadata, root = Path(wheelfile_base), Path(self.bdist_dir)
        if metadata.parent != root:
            return  # an editable installation
        modules = sorted(self.distribution.py_modules)
        contents = [path for path in root.iterdir() if path != metadata]
        packages = root / _PACKAGES
        packages.mkdir()
        for path in contents:
            if path.stem not in modules:
                path.rename(packages / path.name)
        packages.with_suffix(".pth").write_text(f"{_PACKAGES}\n", encoding="utf-8")
        names = "".join(f"{name}\n" for name in modules)
        (metadata / "top_level.txt").write_text(names, encoding="utf-8")


def _compiled_modules() -> list[str]:
    """Return the paths of the modules to be compiled, relative to this file."""
    with (_HERE / "pyproject.toml").open("rb") as file:
        paths: list[str] = tomllib.load(file)["tool"]["foldmq"]["compiled"]
    return paths


def _can_compile() -> bool:
    """Return whether there is a C compiler and it finds the headers of Python."""
    if sys.implementation.name != "cpython":
        return False
    command = Distribution().get_command_obj("build_ext")
    command.ensure_finalized()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "check.c")
        source.write_text(_CHECK, encoding="utf-8")
        from setuptools._distutils.ccompiler import new_compiler
        from setuptools._distutils.sysconfig import customize_compiler

        compiler = new_compiler()
        customize_compiler(compiler)
        if shutil.which(compiler.compiler[0]) is None:
            return False
        try:
            compiler.compile(
                [str(source)],
                output_dir=folder,
                include_dirs=[sysconfig.get_path("include"), sysconfig.get_path("platinclude")],
            )
        except (CompileError, LinkError):
            return False
    return True


def _extensions() -> list[Extension]:
    """Return the extensions of the compiled modules; empty: plain Python."""
    wanted = os.environ.get("FOLDMQ_COMPILE", "")
    if wanted == "0" or not {"bdist_wheel", "build_ext", "install"} & set(sys.argv):
        return []
    if wanted != "1" and not _can_compile():
        sys.stderr.write("foldmq: no C compiler with the headers of Python: not compiled\n")
        return []
    from mypyc.build import mypycify

    os.chdir(_HERE)
    return mypycify(
        ["--config-file", "tools/mypyc.ini", *_compiled_modules()],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name="foldmq",  # else the shared library is named by a hash, which is no module name
    )


setup(
    ext_modules=_extensions(), cmdclass={"bdist_wheel": NamespacedWheel, "build_ext": ParallelBuild}
)
