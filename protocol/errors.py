"""The base class of all errors of foldmq."""


class FoldmqError(Exception):
    """An error that foldmq expects: the message names the problem, the place and the remedy.

    Commands print it as one line, without a traceback, and exit with ``exit_code``. An error of a
    file or of settings may have several problems, its ``args``: the first one is the message.
    """

    exit_code = 1

    def __str__(self) -> str:
        """Return the message."""
        return str(self.args[0]) if self.args else ""
