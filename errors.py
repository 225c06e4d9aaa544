"""The one exception that a user is meant to see."""


class StrixhloError(Exception):
    """Something that the user can act on. The message is one line: what is wrong, where, and what to do.

    The command line prints it without a stack trace and exits with code 2.
    """
