"""The root of foldmq's one error tree."""


class FoldmqError(Exception):
    """Something foldmq can name: the message says what is wrong, where, and what to do.

    The command line prints it as one line and ends with ``exit_code``; nothing else is shown.
    """

    exit_code = 1
