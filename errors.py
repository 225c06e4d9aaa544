"""The one exception that a user is meant to see."""


class StrixhloError(Exception):
    """Something that the user can act on. The message is one line: what is wrong, where, and what to do.

    The command line prints it without a stack trace and exits with code 2.
    """


def one_line(text: object, most: int = 300) -> str:
    """What somebody else's code says, on one line of at most `most` characters, cut between words."""
    line = " ".join(str(text).split())
    if len(line) <= most:
        return line
    words = line[: most - 3].rpartition(" ")[0]
    return f"{words if len(words) > most // 2 else line[: most - 4]} ..."
