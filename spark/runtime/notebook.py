"""An extension of IPython and Jupyter: errors are shown as one line, without tracebacks.

%load_ext spark.runtime.notebook
"""

import sys
from typing import Any

from protocol.errors import FoldmqError
from spark.runtime.explain_failure import explain


def load_ipython_extension(shell: Any) -> None:
    """Show errors of Spark and of foldmq as one line; called by ``%load_ext``."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    shell.set_custom_exc((FoldmqError, PySparkException, Py4JError), _show)


def _show(_shell: Any, _kind: type, error: BaseException, _traceback: Any, **_more: Any) -> None:
    """Write the line that explains an error."""
    sys.stderr.write(f"foldmq: {explain(error)}\n")
