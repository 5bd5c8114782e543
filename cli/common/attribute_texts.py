"""The texts below the attributes of classes, which Python does not keep."""

import ast
import functools
import linecache
import sys
from itertools import pairwise


@functools.cache
def texts_below(module: str) -> dict[str, dict[str, str]]:
    """Return the texts below the attributes of the classes of a module, by class and name.

    None without the source; it may be in an archive.
    """
    space = vars(sys.modules[module])
    classes = ast.parse("".join(linecache.getlines(str(space.get("__file__")), space))).body
    return {
        kind.name: {
            ast.unparse(field.target): " ".join(text.value.value.split())
            for field, text in pairwise(kind.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for kind in classes
        if isinstance(kind, ast.ClassDef)
    }
