"""The base class of all errors of foldmq."""


class FoldmqError(Exception):
    """An error that foldmq expects: the message names the problem, the place and the remedy.

    Commands print it as one line, without a traceback, and exit with ``exit_code``.
    """

    exit_code = 1
