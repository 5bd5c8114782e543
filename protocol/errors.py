"""The root of foldmq's one error tree."""


class FoldmqError(Exception):
    """An error that foldmq expects: the message names the problem, the place and the remedy.

    The command line prints it as one line and ends with ``exit_code``; nothing else is shown.
    """

    exit_code = 1
